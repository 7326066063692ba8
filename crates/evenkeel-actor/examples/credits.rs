//! Two actors that send to each other and cannot deadlock: the consumer grants credits, and the producer sends one item
//! per credit. The credits are no more than the consumer's mailbox holds, so no mailbox is ever full and nobody waits.

use std::num::NonZeroUsize;

use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::{
    Actor, ActorError, ActorRef, ActorSystemConfig, ActorSystemRunner, Context, Flow, HandlerResult,
    MailboxOptions, Props, Reply,
};

const ITEMS: u32 = 10_000;
const CREDITS: u32 = 32;
/// Items after which the consumer grants as many credits again; at most two grants are on their way.
const GRANT: u32 = CREDITS / 2;

struct Producer {
    next: u32,
    credits: u32,
    consumer: ActorRef<ConsumerMsg>,
}

enum ProducerMsg {
    Grant(u32),
}

impl Actor for Producer {
    type Msg = ProducerMsg;

    fn receive(&mut self, message: ProducerMsg, ctx: &mut Context<'_, Self>) -> HandlerResult<ProducerMsg> {
        let ProducerMsg::Grant(credits) = message;
        self.credits += credits;
        while self.credits > 0 && self.next < ITEMS {
            ctx.try_tell(&self.consumer, ConsumerMsg::Item(self.next))
                .map_err(|_| ActorError::new("the consumer granted more credits than it has room for"))?;
            self.next += 1;
            self.credits -= 1;
        }
        Ok(Flow::Continue)
    }
}

struct Consumer {
    sum: u64,
    received: u32,
    producer: Option<ActorRef<ProducerMsg>>,
    done: Option<Reply<u64>>,
}

enum ConsumerMsg {
    Start(ActorRef<ProducerMsg>, Reply<u64>),
    Item(u32),
}

impl Actor for Consumer {
    type Msg = ConsumerMsg;

    fn receive(&mut self, message: ConsumerMsg, _ctx: &mut Context<'_, Self>) -> HandlerResult<ConsumerMsg> {
        match message {
            ConsumerMsg::Start(producer, done) => {
                producer.tell(ProducerMsg::Grant(CREDITS));
                self.producer = Some(producer);
                self.done = Some(done);
            }
            ConsumerMsg::Item(item) => {
                self.sum += u64::from(item);
                self.received += 1;
                if self.received.is_multiple_of(GRANT)
                    && let Some(producer) = &self.producer
                {
                    producer.tell(ProducerMsg::Grant(GRANT));
                }
                if self.received == ITEMS
                    && let Some(done) = self.done.take()
                {
                    let _ = done.send(self.sum); // the asker may have given up
                }
            }
        }
        Ok(Flow::Continue)
    }
}

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = TokioRuntime::current().ok_or("no tokio runtime")?;
    let system = ActorSystemRunner::new(ActorSystemConfig::default()).start(runtime)?;
    let room = MailboxOptions::bounded(NonZeroUsize::new(CREDITS as usize).ok_or("no credits")?);
    let consumer = Consumer { sum: 0, received: 0, producer: None, done: None };
    let consumer = system.spawn_value(consumer, &Props::of_values().mailbox(room).build())?;
    let producer = Producer { next: 0, credits: 0, consumer: consumer.clone() };
    let producer = system.spawn_value(producer, &Props::of_values().build())?;
    let sum = consumer.ask(|done| ConsumerMsg::Start(producer, done)).await?;
    println!("{ITEMS} items, sum {sum}, never more than {CREDITS} on their way");
    assert_eq!(sum, u64::from(ITEMS) * u64::from(ITEMS - 1) / 2);
    Ok(())
}
