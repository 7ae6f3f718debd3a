// Package chaos shows what the operator does to Pods while things go wrong:
// replicas, leaders, API servers and etcd that stop, certificates that change,
// and how fast a SidecarSet is Ready. Each test prints its figures in a line
// that begins with FIGURES; docs/reliability.md quotes them.
//
// By default tests are short. CHAOS=long makes them as long as the document
// says.
package chaos
