# Topics keep messages for as long as the database can go back, so that a consumer can be rewound (subscriptions seek) without a replay.

resource "google_pubsub_topic" "events" {
  for_each                   = toset(compact([var.topic, var.retractions_topic, var.other_events_topic]))
  name                       = each.key
  message_retention_duration = var.topic_retention
  labels                     = { app = "escrow-relayer" }
  depends_on                 = [google_project_service.apis]
}

# A subscription as consumers of events should have it.
resource "google_pubsub_subscription" "example" {
  count = var.example_subscription ? 1 : 0
  name  = "${var.name}-example"
  topic = google_pubsub_topic.events[var.topic].name

  # The existing consumers are not idempotent (a repeated Approved counts twice) and depend on order (an Approved before its
  # EscrowDeployed is lost). Hence both of these. Ordering cannot be switched on later: a subscription without it has to be made anew.
  enable_message_ordering      = true
  enable_exactly_once_delivery = true

  # Exactly-once is about redelivery by Pub/Sub. It does not cover the rare message that is published twice after a crash; the
  # attribute event_id does. Replays are for those who ask for them. A filter cannot be changed later either.
  filter = "NOT attributes:replay"

  ack_deadline_seconds       = 60
  message_retention_duration = "604800s"
  retain_acked_messages      = true # for a seek after a restore of the database
  expiration_policy { ttl = "" }    # never: a consumer may be down for a month

  retry_policy {
    minimum_backoff = "1s"
    maximum_backoff = "60s"
  }

  # A message that cannot be handled holds up the later ones of its escrow; dead-lettering it lets them go on without it, which
  # breaks the order. So only after many attempts, and somebody has to look at what lands there.
  dead_letter_policy {
    dead_letter_topic     = google_pubsub_topic.dead_letters[0].id
    max_delivery_attempts = 50
  }
}

resource "google_pubsub_topic" "dead_letters" {
  count                      = var.example_subscription ? 1 : 0
  name                       = "${var.name}-dead-letters"
  message_retention_duration = var.topic_retention
  depends_on                 = [google_project_service.apis]
}

# Without a subscription a topic forgets.
resource "google_pubsub_subscription" "dead_letters" {
  count                      = var.example_subscription ? 1 : 0
  name                       = "${var.name}-dead-letters"
  topic                      = google_pubsub_topic.dead_letters[0].name
  enable_message_ordering    = true
  message_retention_duration = "604800s"
  expiration_policy { ttl = "" }
}

# Pub/Sub itself moves the messages: its agent has to be allowed to.
resource "google_pubsub_topic_iam_member" "dead_letters" {
  count  = var.example_subscription ? 1 : 0
  topic  = google_pubsub_topic.dead_letters[0].name
  role   = "roles/pubsub.publisher"
  member = local.pubsub_agent
}

resource "google_pubsub_subscription_iam_member" "dead_letters" {
  count        = var.example_subscription ? 1 : 0
  subscription = google_pubsub_subscription.example[0].name
  role         = "roles/pubsub.subscriber"
  member       = local.pubsub_agent
}

locals {
  pubsub_agent = "serviceAccount:service-${data.google_project.this.number}@gcp-sa-pubsub.iam.gserviceaccount.com"
}
