package ledger

import "github.com/jackc/pgx/v5/pgxpool"

// OutboxChannel is the notification channel on which somebody other than a slot's owner says that it wrote outbox rows.
const OutboxChannel = "relayer_outbox"

// Config of a Ledger. All fields are required.
type Config struct {
	DB         *pgxpool.Pool
	ChainID    int64
	InstanceID string
	EventNames []string                    // of the ABIs
	Publishes  func(eventName string) bool // whether events of this name go to Pub/Sub
}
