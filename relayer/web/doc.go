// Package web is the HTTP server of a process: probes, metrics, a status page for people, and a read-only API. A
// Front listens and has the token; a Server has the pages and the API of one chain. With one chain these are at /:
//
//	/            the status page: rendered here, works without scripts; /live keeps it up to date with server-sent events
//	/healthz     the process is alive; independent of everything else
//	/readyz      session, database and node are healthy; else 503, with the failing ones and the reasons
//	/metrics     Prometheus
//	/status      what the page shows, as JSON
//	/escrows/{address}  one escrow with its record and timeline
//	/openapi.yaml  the description of all of the above, which a test compares with the handlers
//
// With several chains each has all that below /chains/ and its id, and / shows them at a glance:
//
//	/readyz/{chain}  the readiness of one chain; /readyz is ready when all chains are
//	/metrics         those of the process and of all chains
//
// The instance's knowledge of itself comes from a Source and costs nothing. The fleet comes from
// the database, read in one place (board), at most every two seconds for all viewers together, and
// every half minute without viewers. The page is rendered at most once a second, for all of them. While the database
// is gone the page shows the last reading and its age.
//
// The package only reads. Texts of errors pass through Config.Mask, since they may quote an RPC or
// database URL.
package web
