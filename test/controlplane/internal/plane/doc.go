// Package plane runs one control plane on this machine: it decides which components run and with
// which flags, starts them as child processes, watches them, and stops them by process id. It
// does not build anything.
//
// Everything it writes is in one data directory: the administrator's kubeconfig, with one context
// for each API server; logs/, one file per component; pki/, etcd/ and components/.
package plane
