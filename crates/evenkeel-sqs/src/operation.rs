//! Which of the protocol's operations a request names.

macro_rules! operations {
    ($($name:ident),* $(,)?) => {
        /// An operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Operation { $($name),* }

        impl Operation {
            /// All of them.
            pub(crate) const ALL: &[Self] = &[$(Self::$name),*];

            /// What it is called.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }
        }
    };
}

operations! {
    AddPermission, CancelMessageMoveTask, ChangeMessageVisibility, ChangeMessageVisibilityBatch, CreateQueue,
    DeleteMessage, DeleteMessageBatch, DeleteQueue, GetQueueAttributes, GetQueueUrl, ListDeadLetterSourceQueues,
    ListMessageMoveTasks, ListQueueTags, ListQueues, PurgeQueue, ReceiveMessage, RemovePermission, SendMessage,
    SendMessageBatch, SetQueueAttributes, StartMessageMoveTask, TagQueue, UntagQueue,
}

impl Operation {
    /// Reads `X-Amz-Target`.
    pub(crate) fn of_target(target: &str) -> Option<Self> {
        let name = target.strip_prefix("AmazonSQS.")?;
        Self::of_name(name)
    }

    /// Finds one by its name.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|operation| operation.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_twenty_three_and_each_is_found_by_its_name() {
        assert_eq!(Operation::ALL.len(), 23);
        for operation in Operation::ALL {
            let target = format!("AmazonSQS.{}", operation.name());
            assert_eq!(Operation::of_target(&target), Some(*operation));
        }
        assert_eq!(Operation::of_target("AmazonSQS.sendmessage"), None);
        assert_eq!(Operation::of_target("SendMessage"), None);
    }
}
