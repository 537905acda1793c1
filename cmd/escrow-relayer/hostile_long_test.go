//go:build long

package main

func init() { honestBeside = []int{0, 2} }
