package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/propagation"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups=coordination.k8s.io,resources=leases,namespace=sidecarset-system,verbs=list;watch;delete

// replicaWatch knows which replicas answer webhooks, and what each knows. A
// replica is live while its Lease changes; that is measured by our clock alone.
// It is used by one goroutine.
type replicaWatch struct {
	leases    client.Reader // a cache
	namespace string
	seen      map[string]seenReplica
}

type seenReplica struct {
	propagation.Replica
	version string    // of a Lease that cannot be read
	at      time.Time // when this state of it was seen first
}

// forgetAfter is how long the Lease of a replica that is gone is kept.
const forgetAfter = 10 * time.Minute

// live returns the replicas that may be called, by name. Leases of others that
// are long gone are returned as dead. A Lease that cannot be read is that of a
// replica which knows nothing, for as long as it changes; nobody deletes it.
func (r *replicaWatch) live(ctx context.Context, now time.Time) (live []propagation.Replica, dead []*coordinationv1.Lease, err error) {
	var list coordinationv1.LeaseList
	err = r.leases.List(ctx, &list, client.InNamespace(r.namespace), client.MatchingLabelsSelector{Selector: propagation.ReplicaLeases()})
	if err != nil {
		return nil, nil, fmt.Errorf("listing the Leases of replicas: %w", err)
	}
	present := map[string]bool{}
	for i := range list.Items {
		lease := &list.Items[i]
		replica, err := propagation.ParseLease(lease)
		version := ""
		if err != nil {
			version = lease.ResourceVersion
		}
		present[replica.Name] = true
		known, ok := r.seen[replica.Name]
		if !ok || !known.Renewed.Equal(replica.Renewed) || known.Observed != replica.Observed || known.version != version {
			known = seenReplica{replica, version, now}
			r.seen[replica.Name] = known
		}
		switch age := now.Sub(known.at); {
		case age < replica.Gone:
			live = append(live, replica)
		case age > forgetAfter && err == nil:
			dead = append(dead, lease)
		}
	}
	maps.DeleteFunc(r.seen, func(name string, _ seenReplica) bool { return !present[name] })
	slices.SortFunc(live, func(a, b propagation.Replica) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return live, dead, nil
}

// lagging is the first replica that does not know a version yet; "" if all do.
func lagging(live []propagation.Replica, version uint64) string {
	for _, replica := range live {
		if replica.Observed < version {
			return replica.Name
		}
	}
	return ""
}
