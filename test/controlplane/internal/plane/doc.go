// Package plane runs one control plane on this machine: it decides which components run and with
// which flags, starts them as child processes, watches them, and stops them by process id. It
// does not build anything.
//
// Everything it writes is in one data directory:
//
//	kubeconfig      for the administrator; one context per API server
//	stand.json      what runs (Info), while it runs
//	stand.lock      held by the supervisor for as long as it lives
//	control.sock    where the supervisor takes requests
//	logs/           one file per component, and the supervisor's own
//	pki/ etcd/ components/
package plane
