# Every message into a table, and a view with each event once. A BigQuery subscription delivers at least once and in no order; the
# view dedupes by event_id. The message goes into one JSON column: mapping
# fields to columns would fail on events with other arguments.

resource "google_bigquery_dataset" "events" {
  count      = local.bigquery
  dataset_id = var.bigquery_dataset
  location   = var.region
  depends_on = [google_project_service.apis]
}

resource "google_bigquery_table" "messages" {
  count               = local.bigquery
  dataset_id          = google_bigquery_dataset.events[0].dataset_id
  table_id            = "messages"
  deletion_protection = var.deletion_protection
  clustering          = ["message_id"]

  time_partitioning {
    type  = "DAY"
    field = "publish_time"
  }

  # The columns that write_metadata wants, with these names and types.
  schema = jsonencode([
    { name = "subscription_name", type = "STRING", mode = "NULLABLE" },
    { name = "message_id", type = "STRING", mode = "NULLABLE" },
    { name = "publish_time", type = "TIMESTAMP", mode = "NULLABLE" },
    { name = "data", type = "JSON", mode = "NULLABLE" },
    { name = "attributes", type = "JSON", mode = "NULLABLE" },
  ])
}

resource "google_bigquery_table" "once" {
  count               = local.bigquery
  dataset_id          = google_bigquery_dataset.events[0].dataset_id
  table_id            = "events"
  deletion_protection = false

  view {
    use_legacy_sql = false
    query          = <<-SQL
      SELECT
        JSON_VALUE(attributes.event_id) AS event_id,
        JSON_VALUE(attributes.event_type) AS event_type,
        JSON_VALUE(attributes.chain_id) AS chain_id,
        JSON_VALUE(attributes.escrow) AS escrow,
        CAST(JSON_VALUE(attributes.block_number) AS INT64) AS block_number,
        INT64(data.log_index) AS log_index,
        publish_time,
        data
      FROM `${var.project}.${var.bigquery_dataset}.messages`
      WHERE TRUE
      QUALIFY ROW_NUMBER() OVER (PARTITION BY JSON_VALUE(attributes.chain_id), JSON_VALUE(attributes.event_id) ORDER BY publish_time) = 1
    SQL
  }

  depends_on = [google_bigquery_table.messages]
}

resource "google_pubsub_subscription" "bigquery" {
  count                      = local.bigquery
  name                       = "${var.name}-bigquery"
  topic                      = google_pubsub_topic.events[var.topic].name
  message_retention_duration = "604800s"
  expiration_policy { ttl = "" }

  bigquery_config {
    table            = "${var.project}.${var.bigquery_dataset}.${google_bigquery_table.messages[0].table_id}"
    write_metadata   = true
    use_topic_schema = false
  }

  depends_on = [google_bigquery_table_iam_member.pubsub]
}

resource "google_bigquery_table_iam_member" "pubsub" {
  count      = local.bigquery
  dataset_id = google_bigquery_dataset.events[0].dataset_id
  table_id   = google_bigquery_table.messages[0].table_id
  role       = "roles/bigquery.dataEditor"
  member     = local.pubsub_agent
}

locals {
  bigquery = var.bigquery_dataset == "" ? 0 : 1
}
