//go:build !linux

package testpg

func inMemory() string { return "" }
