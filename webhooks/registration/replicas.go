package registration

import (
	"context"
	"net"
	"strconv"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups=discovery.k8s.io,resources=endpointslices,namespace=sidecarset-system,verbs=list

// replicaWatch knows whether the webhooks' Service has a replica that is ready. It is
// used by one goroutine.
type replicaWatch struct {
	live    client.Reader
	service admissionregistrationv1.ServiceReference
	// assumed is true if this process answers webhooks itself, or if API servers call a URL.
	// Then only the prober finds out whether a replica answers.
	assumed bool

	found time.Time // when it last had one, or the endpoints could not be listed
}

const (
	// replicasKept is how long the answer that there are replicas is used.
	replicasKept = 5 * time.Second
	// replicasTimeout bounds the question.
	replicasTimeout = 2 * time.Second
)

// any reports whether some replica is ready. If the endpoints cannot be listed, it assumes
// one; the prober finds out.
func (r *replicaWatch) any(ctx context.Context, now time.Time) bool {
	if r.assumed || now.Sub(r.found) < replicasKept {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, replicasTimeout)
	defer cancel()
	var list discoveryv1.EndpointSliceList
	err := r.live.List(ctx, &list, client.InNamespace(r.service.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: r.service.Name})
	if err != nil {
		log.FromContext(ctx).V(1).Info("Failed to list the EndpointSlices of the webhooks' Service", "Service", r.service.Name, "reason", err.Error())
	}
	if err == nil && len(endpoints(&list)) == 0 {
		return false
	}
	r.found = now
	return true
}

// endpoints are "host:port" of all addresses that are ready.
func endpoints(list *discoveryv1.EndpointSliceList) []string {
	var hosts []string
	for i := range list.Items {
		slice := &list.Items[i]
		port := "443"
		for _, p := range slice.Ports {
			if p.Port != nil {
				port = strconv.Itoa(int(*p.Port))
			}
		}
		for _, endpoint := range slice.Endpoints {
			if ready := endpoint.Conditions.Ready; ready != nil && !*ready {
				continue
			}
			for _, address := range endpoint.Addresses {
				hosts = append(hosts, net.JoinHostPort(address, port))
			}
		}
	}
	return hosts
}
