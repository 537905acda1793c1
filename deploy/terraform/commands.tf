# Commands: the keys that the relayer acts with, the files that say who may ask for what, the topics, and an account of its own for the services that
# have them. Without `senders` none of it is created. What somebody who stole each secret could do: relayer/command/send/README.md.

locals {
  commands = length(var.senders) == 0 ? 0 : 1

  # The first services have the keys: a repartition that shrinks the fleet deletes the last ones first.
  keyed = toset([for p in range(local.commands * min(var.key_services, var.partitions)) : tostring(p)])

  key_member = one([for a in google_service_account.keys : "serviceAccount:${a.email}"])
  key_user   = one([for a in google_service_account.keys : trimsuffix(a.email, ".gserviceaccount.com")])

  # Besides database-url, rpc-urls and monitoring.
  key_secrets = local.commands == 0 ? [] : ["keys-database-url", "senders", "policy"]
}

# The account that may sign. The services without keys, and the operators, cannot act as it.
resource "google_service_account" "keys" {
  count        = local.commands
  account_id   = "${var.name}-keys"
  display_name = "Escrow relayer ${var.name}, services with keys"
  depends_on   = [google_project_service.apis]
}

resource "google_kms_key_ring" "senders" {
  count      = local.commands
  name       = var.name
  location   = var.region
  depends_on = [google_project_service.apis]
}

# One key per account. Only keys in an HSM have this curve. The key is created in the HSM and never leaves it: whoever may sign with it has the account.
resource "google_kms_crypto_key" "sender" {
  for_each                   = toset(var.senders)
  name                       = each.key
  key_ring                   = google_kms_key_ring.senders[0].id
  purpose                    = "ASYMMETRIC_SIGN"
  destroy_scheduled_duration = "2592000s" # 30 days to change your mind: without the key its account is lost, and what only that account can do

  version_template {
    algorithm        = "EC_SIGN_SECP256K1_SHA256"
    protection_level = "HSM"
  }

  lifecycle {
    prevent_destroy = true
  }
}

# To sign and to read the public key, each key by itself; not to make, disable or destroy one.
resource "google_kms_crypto_key_iam_member" "keys" {
  for_each      = google_kms_crypto_key.sender
  crypto_key_id = each.value.id
  role          = "roles/cloudkms.signerVerifier"
  member        = local.key_member
}

# What every service needs, for this account.
resource "google_project_iam_member" "keys" {
  for_each = local.commands == 0 ? {} : local.project_roles
  project  = var.project
  role     = each.key
  member   = local.key_member

  dynamic "condition" {
    for_each = contains(local.database_roles, each.key) ? [1] : []
    content {
      title       = "${var.name} only"
      description = each.value
      expression  = local.this_instance
    }
  }
}

resource "google_pubsub_topic_iam_member" "keys" {
  for_each = local.commands == 0 ? {} : google_pubsub_topic.events
  topic    = each.value.name
  role     = "roles/pubsub.publisher"
  member   = local.key_member
}

resource "google_secret_manager_secret_iam_member" "keys" {
  for_each  = toset(local.commands == 0 ? [] : concat(["rpc-urls", "monitoring"], local.key_secrets))
  secret_id = google_secret_manager_secret.this[each.key].id
  role      = "roles/secretmanager.secretAccessor"
  member    = local.key_member
}

resource "google_sql_user" "keys" {
  count           = local.commands
  name            = local.key_user
  instance        = local.instance_name
  type            = "CLOUD_IAM_SERVICE_ACCOUNT"
  deletion_policy = "ABANDON"
}

resource "google_secret_manager_secret_version" "keys_database_url" {
  count       = local.commands
  secret      = google_secret_manager_secret.this["keys-database-url"].id
  secret_data = "postgresql://${urlencode(local.key_user)}@/${var.database_name}"
}

# The topic of commands. Whoever may publish here has no authority by that: what a command may do depends on who signed it.
resource "google_pubsub_topic" "commands" {
  count      = local.commands
  name       = var.commands_topic
  labels     = { app = "escrow-relayer" }
  depends_on = [google_project_service.apis]
}

# A message is acknowledged when its commands are stored, or refused; so nothing is dead-lettered, and no order is needed.
resource "google_pubsub_subscription" "commands" {
  count                      = local.commands
  name                       = "${var.name}-commands"
  topic                      = google_pubsub_topic.commands[0].name
  ack_deadline_seconds       = 60
  message_retention_duration = "604800s"
  expiration_policy { ttl = "" }

  retry_policy {
    minimum_backoff = "1s"
    maximum_backoff = "60s"
  }
}

resource "google_pubsub_subscription_iam_member" "commands" {
  count        = local.commands
  subscription = google_pubsub_subscription.commands[0].name
  role         = "roles/pubsub.subscriber"
  member       = local.key_member
}

# The answers: to all requesters on one topic, ordered by command. Each requester keeps what is its own.
resource "google_pubsub_topic" "replies" {
  count                      = local.commands
  name                       = var.replies_topic
  message_retention_duration = var.topic_retention
  labels                     = { app = "escrow-relayer" }
  depends_on                 = [google_project_service.apis]
}

resource "google_pubsub_topic_iam_member" "replies" {
  count  = local.commands
  topic  = google_pubsub_topic.replies[0].name
  role   = "roles/pubsub.publisher"
  member = local.key_member
}

resource "google_pubsub_subscription" "replies" {
  count                      = local.commands
  name                       = "${var.name}-replies"
  topic                      = google_pubsub_topic.replies[0].name
  enable_message_ordering    = true # an answer, `reopened` after a deep reorganisation, and the next answer
  ack_deadline_seconds       = 60
  message_retention_duration = "604800s"
  expiration_policy { ttl = "" }
}

# Requesters publish commands and read answers. The key that signs is theirs.
resource "google_pubsub_topic_iam_member" "requesters" {
  for_each = toset(local.commands == 0 ? [] : var.requesters)
  topic    = google_pubsub_topic.commands[0].name
  role     = "roles/pubsub.publisher"
  member   = each.key
}

resource "google_pubsub_subscription_iam_member" "requesters" {
  for_each     = toset(local.commands == 0 ? [] : var.requesters)
  subscription = google_pubsub_subscription.replies[0].name
  role         = "roles/pubsub.subscriber"
  member       = each.key
}
