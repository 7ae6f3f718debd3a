// Package webhooks answers the API server. This package is the map of its packages,
// and Setup, which registers them with the webhook server:
//
//   - server bounds connections and requests, which any Pod can open and send. It knows nothing about
//     Pods and SidecarSets.
//   - pods injects sidecars into Pods that are created.
//   - sidecarsets fills in defaults of SidecarSets, checks them, and asks whether
//     their authors may inject.
//   - entries keeps the webhook entries by which API servers call the operator, and makes
//     sure that the replica that answers knows the SidecarSets.
//   - conversion converts SidecarSets between versions.
//   - snapshot knows what is stored. The other packages decide by its snapshots.
//
// The packages know HTTP and informers. Every decision is made in internal/.
package webhooks
