//! The directory of keys: every file is what its name says, and every key but the first was introduced by an earlier one.

use super::{Findings, What};
use crate::evidence::dsse::Envelope;
use crate::evidence::key::{Keys, PublicKey, Rotation, SIGNING, Trusted};
use crate::evidence::{Place, StoreError};
use std::collections::BTreeSet;

/// Public keys, rotations, and what is wrong with the directory.
pub fn keys_of(place: &Place, out: &mut Findings) -> Result<(Trusted, Vec<Envelope>), StoreError> {
    let (mut all, mut rotations) = (Trusted::default(), Vec::new());
    let Some(keys) = Keys::look(place)? else { return Ok((all, rotations)) };
    let mut introduced = BTreeSet::new();
    for name in keys.names()? {
        let mut wrong = |why: &str| out.add(What::Key, None, None, "keys", format!("{name}: {why}"));
        let bytes = match keys.read(&name) {
            Ok(bytes) => bytes.unwrap_or_default(),
            Err(e) => {
                wrong(&e.to_string());
                continue;
            }
        };
        if let Some(id) = name.strip_suffix(".pub") {
            match PublicKey::from_pem(&bytes) {
                Some(key) if key.id().hex() == id => all.add(key),
                Some(_) => wrong("it holds another key than its name says"),
                None => wrong("it is no ed25519 public key in PEM"),
            }
        } else if let Some(id) = name.strip_suffix(".rotation.json") {
            match Envelope::parse(&bytes) {
                Ok(envelope) => {
                    rotations.push(envelope);
                    introduced.insert(id.to_owned());
                }
                Err(why) => wrong(&why.to_string()),
            }
        } else if name != SIGNING && !name.starts_with(".pending-") {
            wrong("no file of ours has such a name");
        }
    }
    for envelope in &rotations {
        match Rotation::open(envelope, &all) {
            // A key whose file is not there yet is one that a killed rotation was about to make: it has signed nothing, or its
            // receipts are found to be of nobody.
            Ok(rotation) if introduced.contains(&rotation.to) => {}
            Ok(rotation) => {
                let detail = format!("the rotation to {} is not where it belongs", rotation.to);
                out.add(What::Key, None, None, "keys", detail);
            }
            Err(why) => out.add(What::Key, None, None, "keys", format!("a rotation: {why}")),
        }
    }
    let first = all.iter().filter(|key| !introduced.contains(&key.id().hex())).count();
    if first > 1 {
        let detail = format!(
            "{first} keys were introduced by no earlier one; but for the first, each should have been"
        );
        out.add(What::Key, None, None, "keys", detail);
    }
    match keys.present() {
        Ok(Some(key)) if all.get(&PublicKey::of(&key).id().hex()).is_none() => {
            out.add(What::Key, None, None, "keys", format!("{SIGNING}: its public half is not there"));
        }
        Ok(_) => {}
        Err(e) => out.add(What::Key, None, None, "keys", e.to_string()),
    }
    Ok((all, rotations))
}
