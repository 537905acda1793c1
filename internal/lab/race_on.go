//go:build race

package lab

// RaceDetector reports whether the race detector is built in. It doubles what is on the heap.
const RaceDetector = true
