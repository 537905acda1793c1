// Package testchain provides chains to test against, the contracts on them, traffic, and the truth about what happened.
//
//   - Sim is go-ethereum's simulated chain in this process: a block when one is asked for,
//     reorganisations, time travel; in 50 ms.
//   - StartGeth and StartAnvil run independent nodes as processes. All three are a Node.
//   - Deploy puts the contracts (package contracts) on a chain; Traffic uses them, driven by a seed.
//   - ReadTruth reads every log of the factories and their escrows by another way than the relayer
//     does, for comparison.
//
// Everything but Sim's own methods goes through JSON-RPC, so that it works with any node.
//
// What the nodes call safe and finalized: Sim and geth --dev take the head for safe and the newest
// block whose number divides by 32 for finalized; anvil takes head-32 and head-64. A reorganisation
// may go below both, which on a real chain would be a disaster and is here how the relayer's answer
// to it is tested.
package testchain
