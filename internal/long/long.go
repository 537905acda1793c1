//go:build long

// Package long says whether whole tables of cases run, as in `make long`, or one of each class.
package long

// Tables reports it.
const Tables = true
