// Package controllers acts on what is stored. It has two halves until they are
// packages of their own.
//
// The SidecarSet controller runs on the leader: it watches Pods, hands them to
// internal/tally, records revisions, and writes what internal/status makes of the
// counters. It reads SidecarSets from the snapshot that admission works with.
//
// PodWebhooks keeps the webhook entries by which API servers call the operator for
// Pods. Every replica adds to them while a SidecarSet is being admitted; the leader
// keeps the whole and says which SidecarSets are ready, for which it asks the
// injection engine whether any Pod can be injected. Rivals follows other injectors
// on every replica.
package controllers
