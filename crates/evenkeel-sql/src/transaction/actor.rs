//! The actor of one transaction: keeps its connection between statements and ends it in time.

use std::sync::{Arc, Weak};

use evenkeel_actor::{Actor, Context, Flow, HandlerResult, Repeat, Reply, Signal, TimerId};

use super::{CheckedOut, EndedBy, OpenTransaction, Transactions};
use crate::database::LentConnection;
use crate::options::SqlLimits;

const TIME_LIMIT: TimerId = TimerId(0);

pub(super) struct TransactionActor {
    number: u64,
    transactions: Weak<Transactions>,
    /// `None` while a request has the connection.
    connection: Option<LentConnection>,
    limits: SqlLimits,
    /// Set when the transaction must end as soon as its connection is back.
    end_on_return: Option<EndedBy>,
}

pub(super) enum TransactionMsg {
    /// A request asks for the connection; `None` if the transaction is ending.
    CheckOut(Arc<OpenTransaction>, Reply<Option<CheckedOut>>),
    /// A request returns the connection.
    Return(LentConnection),
    /// The transaction must be rolled back.
    End(EndedBy),
    /// The transaction has ended, and its connection is gone.
    Ended,
}

impl TransactionActor {
    pub(super) fn new(
        number: u64,
        transactions: Weak<Transactions>,
        connection: LentConnection,
        limits: SqlLimits,
    ) -> Self {
        Self { number, transactions, connection: Some(connection), limits, end_on_return: None }
    }

    fn check_out(
        &mut self,
        open: Arc<OpenTransaction>,
        reply: Reply<Option<CheckedOut>>,
        ctx: &mut Context<'_, Self>,
    ) {
        let lent = if self.end_on_return.is_some() { None } else { self.connection.take() };
        // A statement may take longer than the transaction may be idle.
        ctx.set_receive_timeout(None);
        let checked_out = lent.zip(self.transactions.upgrade());
        let checked_out = checked_out.map(|(lent, transactions)| CheckedOut {
            lent: Some(lent),
            ends_if_lost: EndedBy::ConnectionLost,
            open,
            transactions,
        });
        // A connection that nobody claims returns itself.
        drop(reply.send(checked_out));
    }

    fn take_back(&mut self, connection: LentConnection, ctx: &mut Context<'_, Self>) {
        self.connection = Some(connection);
        ctx.set_receive_timeout(Some(self.limits.transaction_idle_max));
    }

    /// Rolls back, now or once the running statement is over.
    fn end(&mut self, ended_by: EndedBy) -> HandlerResult<TransactionMsg> {
        let transactions = self.transactions.upgrade();
        if self.connection.is_none() && ended_by == EndedBy::Reclaimed {
            // A statement began meanwhile, so the transaction is not idle.
            return Ok(Flow::Continue);
        }
        if self.connection.is_none() {
            self.end_on_return = Some(ended_by);
            if let Some(open) = transactions.and_then(|all| all.open.lock().get(&self.number).cloned()) {
                open.stop(ended_by);
            }
            return Ok(Flow::Continue);
        }
        if let Some(transactions) = transactions {
            transactions.close(self.number, ended_by);
        }
        // Dropping the connection rolls back.
        self.connection = None;
        Ok(Flow::Stop)
    }
}

impl Actor for TransactionActor {
    type Msg = TransactionMsg;

    fn started(&mut self, ctx: &mut Context<'_, Self>) -> HandlerResult<TransactionMsg> {
        ctx.set_receive_timeout(Some(self.limits.transaction_idle_max));
        ctx.set_timer(TIME_LIMIT, self.limits.transaction_time_max, Repeat::Once);
        Ok(Flow::Continue)
    }

    fn receive(
        &mut self,
        message: TransactionMsg,
        ctx: &mut Context<'_, Self>,
    ) -> HandlerResult<TransactionMsg> {
        match message {
            TransactionMsg::CheckOut(open, reply) => self.check_out(open, reply, ctx),
            TransactionMsg::Return(connection) => {
                self.take_back(connection, ctx);
                if let Some(ended_by) = self.end_on_return {
                    return self.end(ended_by);
                }
            }
            TransactionMsg::End(ended_by) => return self.end(ended_by),
            TransactionMsg::Ended => return Ok(Flow::Stop),
        }
        Ok(Flow::Continue)
    }

    fn signal(&mut self, signal: Signal, _: &mut Context<'_, Self>) -> HandlerResult<TransactionMsg> {
        match signal {
            Signal::ReceiveTimeout => self.end(EndedBy::IdleTimeout),
            Signal::Timer(_) => self.end(EndedBy::TimeLimit),
            Signal::Terminated { .. } | Signal::ChildFailed(_) | Signal::CapacityTimeout => {
                Ok(Flow::Continue)
            }
        }
    }
}
