//! The 23 operations of the SQS protocol.

macro_rules! operations {
    ($($name:ident),* $(,)?) => {
        /// An operation of the SQS protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Operation { $($name),* }

        impl Operation {
            pub(crate) const ALL: &[Self] = &[$(Self::$name),*];

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
    /// Reports whether the operation changes queues or who may use them, or purges or moves messages.
    pub(crate) const fn is_change(self) -> bool {
        match self {
            Self::AddPermission
            | Self::CancelMessageMoveTask
            | Self::CreateQueue
            | Self::DeleteQueue
            | Self::PurgeQueue
            | Self::RemovePermission
            | Self::SetQueueAttributes
            | Self::StartMessageMoveTask
            | Self::TagQueue
            | Self::UntagQueue => true,
            Self::ChangeMessageVisibility
            | Self::ChangeMessageVisibilityBatch
            | Self::DeleteMessage
            | Self::DeleteMessageBatch
            | Self::GetQueueAttributes
            | Self::GetQueueUrl
            | Self::ListDeadLetterSourceQueues
            | Self::ListMessageMoveTasks
            | Self::ListQueueTags
            | Self::ListQueues
            | Self::ReceiveMessage
            | Self::SendMessage
            | Self::SendMessageBatch => false,
        }
    }

    /// Reports whether the operation neither changes anything nor leases messages.
    pub(crate) const fn is_read(self) -> bool {
        matches!(
            self,
            Self::GetQueueAttributes
                | Self::GetQueueUrl
                | Self::ListDeadLetterSourceQueues
                | Self::ListMessageMoveTasks
                | Self::ListQueueTags
                | Self::ListQueues
        )
    }

    /// Reports whether the URL of a queue is an endpoint of the operation.
    pub(crate) const fn is_on_queue(self) -> bool {
        !matches!(self, Self::CreateQueue | Self::ListQueues)
    }

    /// Reports whether responses of the operation have fields.
    pub(crate) const fn has_result(self) -> bool {
        !matches!(
            self,
            Self::AddPermission
                | Self::ChangeMessageVisibility
                | Self::DeleteMessage
                | Self::DeleteQueue
                | Self::PurgeQueue
                | Self::RemovePermission
                | Self::SetQueueAttributes
                | Self::TagQueue
                | Self::UntagQueue
        )
    }

    /// Parses `X-Amz-Target`.
    pub(crate) fn from_target(target: &str) -> Option<Self> {
        let name = target.strip_prefix("AmazonSQS.")?;
        Self::from_name(name)
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|operation| operation.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_the_23_operations_is_found_by_its_name() {
        assert_eq!(Operation::ALL.len(), 23);
        for operation in Operation::ALL {
            let target = format!("AmazonSQS.{}", operation.name());
            assert_eq!(Operation::from_target(&target), Some(*operation));
        }
        assert_eq!(Operation::from_target("AmazonSQS.sendmessage"), None);
        assert_eq!(Operation::from_target("SendMessage"), None);
    }
}
