//! Reasons for which AWS rejects a parameter, in AWS's words: clients match on them.
//!
//! `error` has the texts of the other codes, and the hints in which the gateway explains an error in its own words.

pub(crate) const WRONG_QUEUE_TYPE: &str =
    "The request include parameter that is not valid for this queue type.";
/// AWS has its own wording for `MessageDeduplicationId`.
pub(crate) const DEDUP_ON_STANDARD_QUEUE: &str =
    "The request includes a parameter that is not valid for this queue type.";
/// The whole text of the same error of an entry in a batch.
pub(crate) const DEDUP_ON_STANDARD_QUEUE_IN_BATCH: &str =
    "The request include parameter that is not valid for this queue type";
pub(crate) const NO_DEDUP: &str = "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly";
pub(crate) const GROUP: &str =
    "MessageGroupId can only include alphanumeric and punctuation characters. 1 to 128 in length.";
pub(crate) const DEDUP: &str =
    "MessageDeduplicationId can only include alphanumeric and punctuation characters. 1 to 128 in length.";
pub(crate) const ATTEMPT: &str =
    "ReceiveRequestAttemptId can only include alphanumeric and punctuation characters. 1 to 128 in length.";

pub(crate) const NO_QUEUE_NAME: &str =
    "Value for parameter QueueName is invalid. Reason: Must specify a queue name.";
pub(crate) const QUEUE_NAME: &str =
    "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length";
pub(crate) const FIFO_QUEUE_NAME: &str = "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with \
     .fifo suffix and be 1 to 80 in length";

pub(crate) const RECEIVE_MAX: &str = "Must be between 1 and 10, if provided.";
pub(crate) const WAIT: &str = "Must be >= 0 and <= 20, if provided.";
pub(crate) const RECEIVE_VISIBILITY: &str = "Must be >= 0 and <= 43200, if provided.";
pub(crate) const CHANGE_VISIBILITY: &str = "VisibilityTimeout must be an integer between 0 and 43200.";
pub(crate) const DELAY: &str = "DelaySeconds must be >= 0 and <= 900.";
pub(crate) const PAGE: &str =
    "Value for parameter MaxResults is invalid. Reason: MaxResults must be an integer between 1 and 1000.";
pub(crate) const NEXT_TOKEN: &str = "Invalid or expired next token.";

pub(crate) const CHARACTERS: &str = "Invalid characters found. Valid unicode characters are \
     #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF";
pub(crate) const NO_ATTRIBUTE_NAME: &str =
    "The request must contain non-empty message (user) attribute names.";
pub(crate) const ATTRIBUTE_NAME_LENGTH: &str =
    "Message (user) attribute name must be shorter than 256 bytes.";
pub(crate) const ATTRIBUTE_NAME_CHARACTERS: &str = "Message (user) attributes name can only contain upper and lower score characters, digits, periods, hyphens and \
     underscores. ";
pub(crate) const ATTRIBUTE_NAME_RESERVED: &str = "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These strings are reserved for internal \
     use. Additionally, they cannot start or end with '.'.";
pub(crate) const ATTRIBUTE_TYPE_LENGTH: &str =
    "Message (user) attribute type must be shorter than 256 bytes.";
pub(crate) const ATTRIBUTE_LIST: &str =
    "Message attribute list values in SendMessage operation are not supported.";

pub(crate) const TAG_KEY: &str = "Tag keys must be between 1 and 128 characters in length.";

pub(crate) const MODIFIED_QUEUE_TYPE: &str = " Reason: Modifying queue type is not supported.";
pub(crate) const REDRIVE_NOT_JSON: &str = " Reason: Redrive policy is not a valid JSON map.";
pub(crate) const REDRIVE_NO_COUNT: &str =
    "Redrive policy does not contain mandatory attribute: maxReceiveCount.";
pub(crate) const REDRIVE_NO_TARGET: &str =
    "Redrive policy does not contain mandatory attribute: deadLetterTargetArn.";
pub(crate) const REDRIVE_ATTRIBUTES: &str =
    "Only following attributes are supported: [maxReceiveCount, deadLetterTargetArn].";
pub(crate) const REDRIVE_ARN: &str = "Invalid value for deadLetterTargetArn.";
pub(crate) const REDRIVE_NO_QUEUE: &str = "Dead letter target does not exist.";
/// AWS ends this sentence twice.
pub(crate) const REDRIVE_TYPE: &str = "Dead-letter queue must be same type of queue as the source..";
pub(crate) const ALLOW_FORMAT: &str =
    " Reason: Amazon SQS can't create the redrive allow policy, as it\u{2019}s in an unsupported format.";
pub(crate) const ALLOW_NO_SOURCES: &str = "Amazon SQS can't create the redrive allow policy. When you specify the byQueue permission type, you must also \
     specify one or more sourceQueueArns values.";
pub(crate) const ALLOW_SOURCES_MAX: &str = "Amazon SQS can't create the redrive allow policy. The maximum number of source queue ARNs you can specify is 10.";
pub(crate) const ALLOW_SOURCES: &str = "Amazon SQS can't create the redrive allow policy. To specify one or more source queue ARNs, you must set \
     redrivePermission to byQueue.";

pub(crate) const NO_SOURCE: &str =
    "The resource that you specified for the SourceArn parameter doesn't exist.";
pub(crate) const NO_DESTINATION: &str =
    "The resource that you specified for the DestinationArn parameter doesn't exist.";
pub(crate) const NO_TASK: &str = "Task does not exist.";
pub(crate) const TASK_HANDLE: &str = "Value for parameter TaskHandle is invalid.";
pub(crate) const TASK_NOT_ACTIVE: &str = "Only active tasks can be cancelled.";
pub(crate) const TASK_RUNNING: &str = "There is already a task running. Only one active task is allowed for a source queue arn at a given time.";
pub(crate) const NOT_A_DEAD_LETTER_QUEUE: &str = "Source queue must be configured as a Dead Letter Queue.";
pub(crate) const SAME_QUEUE: &str = "Source queue arn and destination queue arn cannot be the same.";
pub(crate) const QUEUE_TYPES_DIFFER: &str =
    "The source queue and destination queue must be of the same queue type.";
pub(crate) const MOVE_RATE: &str = "Value for parameter MaxNumberOfMessagesPerSecond is invalid. Reason: You must enter a number that's between 1 and 500.";
pub(crate) const TASKS: &str =
    "Value for parameter MaxResults is invalid. Reason: MaxResults must be an integer between 1 and 10.";

pub(crate) const LABEL: &str =
    "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length.";
pub(crate) const LABEL_EXISTS: &str = "Already exists.";
pub(crate) const NO_LABEL: &str = "can't find label.";
pub(crate) const PRINCIPAL: &str = "Unable to verify.";
pub(crate) const ACTION: &str = "Please refer to the appropriate WSDL for a list of valid actions.";
pub(crate) const OWNER_ACTION: &str = "Only the queue owner is allowed to invoke this action.";
