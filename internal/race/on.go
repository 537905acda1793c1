//go:build race

// Package race says whether the race detector is built in.
package race

// Detector reports it. It doubles what is on the heap, and what computes takes ten times as long.
const Detector = true
