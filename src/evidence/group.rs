//! Group commit: one thread that owns the [`Store`]; what concurrent runs ask for while a sync is under way is committed
//! together by the next one. Each request stands in a savepoint of its own, so that one which fails does not take the
//! others along; when the commit fails, all of them are told.

use super::StoreError;
use super::store::{Durable, Store, Txn};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Requests of one commit at most.
pub const GROUP_MAX: usize = 512;
/// Requests that wait at most; the next one's caller waits for room.
pub const QUEUE_MAX: usize = 4096;

/// How long a group is waited for when the last one had several requests: less than most syncs take.
const GATHER: Duration = Duration::from_micros(250);

type Told = Box<dyn FnOnce(Result<(), StoreError>) + Send>;
/// Does its part of the step, and is told of the commit by what it returns; without a step it tells of the error.
type Request = Box<dyn FnOnce(Result<&mut Txn<'_>, StoreError>) -> Told + Send>;

/// A handle to the writing thread; clones share it.
#[derive(Debug)]
pub struct Committer {
    requests: Option<SyncSender<Request>>,
    thread: Option<JoinHandle<Store>>,
}

/// A request under way.
#[derive(Debug)]
pub struct Pending<T>(Receiver<Result<T, StoreError>>);

impl<T> Pending<T> {
    /// Waits for the commit.
    ///
    /// # Errors
    /// The request's or the commit's; [`StoreError::Stopped`] when the writer is gone.
    pub fn wait(self) -> Result<Durable<T>, StoreError> {
        self.0.recv().unwrap_or(Err(StoreError::Stopped { step: "committing" })).map(Durable::proved)
    }

    /// Waits for `most`: `None` when it was not committed yet (MA-TLS-16, `deferred`).
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn wait_for(&self, most: Duration) -> Option<Result<Durable<T>, StoreError>> {
        match self.0.recv_timeout(most) {
            Ok(result) => Some(result.map(Durable::proved)),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(StoreError::Stopped { step: "committing" })),
        }
    }
}

impl Committer {
    /// Starts the thread.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(store: Store) -> Result<Self, StoreError> {
        let (requests, queue) = mpsc::sync_channel(QUEUE_MAX);
        let thread = std::thread::Builder::new()
            .name("evidence".to_owned())
            .spawn(move || serve(store, &queue))
            .map_err(|_| StoreError::Stopped { step: "starting the writer" })?;
        Ok(Self { requests: Some(requests), thread: Some(thread) })
    }

    /// Hands in a request; it is committed and synced even when the [`Pending`] is dropped.
    ///
    /// # Errors
    /// [`StoreError::Stopped`].
    pub fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Txn<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<Pending<T>, StoreError> {
        let (tell, told) = mpsc::sync_channel(1);
        let request: Request = Box::new(move |txn| {
            let result = txn.and_then(|txn| txn.apart(work));
            Box::new(move |commit: Result<(), StoreError>| {
                // Nobody may be listening any more.
                let _ = tell.send(commit.and(result));
            })
        });
        let stopped = StoreError::Stopped { step: "handing in a record" };
        match &self.requests {
            Some(requests) => requests.send(request).map_err(|_| stopped)?,
            None => return Err(stopped),
        }
        Ok(Pending(told))
    }

    /// One step, committed and synced together with others that are asked for meanwhile.
    ///
    /// # Errors
    /// The step's, or the commit's.
    pub fn durable<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Txn<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<Durable<T>, StoreError> {
        self.submit(work)?.wait()
    }

    /// Commits what was handed in, stops the thread, and gives the store back.
    ///
    /// # Errors
    /// [`StoreError::Stopped`] when the thread has died.
    pub fn stop(mut self) -> Result<Store, StoreError> {
        self.requests = None;
        let stopped = StoreError::Stopped { step: "stopping the writer" };
        self.thread.take().ok_or(stopped.clone())?.join().map_err(|_| stopped)
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(mut store: Store, queue: &Receiver<Request>) -> Store {
    // How many asked last time: those who were just told are about to ask again, and a moment's patience puts them into
    // one sync instead of two. Whoever asks alone never waits.
    let mut expected = 1;
    while let Ok(first) = queue.recv() {
        let mut group = vec![first];
        let until = Instant::now() + GATHER;
        while group.len() < GROUP_MAX {
            let next = if group.len() < expected {
                queue.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
            } else {
                queue.try_recv().ok()
            };
            match next {
                Some(next) => group.push(next),
                None => break,
            }
        }
        expected = group.len();
        let mut told: Vec<Told> = Vec::with_capacity(group.len());
        let mut waiting = group.into_iter();
        let committed = store.durable(|txn| {
            told.extend(waiting.by_ref().map(|request| request(Ok(&mut *txn))));
            Ok(())
        });
        let result = committed.map(|_| ());
        if let Err(e) = &result {
            // The step could not even begin.
            told.extend(waiting.map(|request| request(Err(e.clone()))));
        }
        for tell in told {
            tell(result.clone());
        }
        // Between groups nobody waits for long; a log that stays is merely read.
        let _ = store.checkpoint();
    }
    store
}
