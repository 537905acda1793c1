// Package testpg runs throwaway Postgres servers and hands every test a migrated database of its own.
//
// A test calls New or Pool and gets an empty, migrated database. The first call starts one server
// for the whole test binary; a second pipe-watching process ends it and removes its files when the
// binary ends, however it ends (returned, panicked, killed). The schema is applied once, to a
// template; a test's database is a copy of that, which takes milliseconds.
//
// A program (demo, chaos, bench) calls Start and has a server to itself, which it may also shut down and bring back.
//
// Server binaries are looked for on PATH, then where Debian, Homebrew and Postgres.app put them;
// where there are none, they are fetched by embedded-postgres into the user's cache. Postgres
// refuses to run as root, so root runs it as the user postgres or nobody.
//
// The package serves tests and local programs only: every connection is trusted, and without
// Options.Durable a power cut loses data.
package testpg
