package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

const (
	pageProcess = "docs/troubleshooting.md#the-operator-itself"
	// tolerance is how far the clocks of the cluster and of the user may be apart.
	tolerance = 5 * time.Minute
)

// Leads reports whether some process of the operator holds its Lease.
func Leads(lease *coordinationv1.Lease) bool {
	s := &lease.Spec
	held := s.HolderIdentity != nil && *s.HolderIdentity != "" && s.RenewTime != nil && s.LeaseDurationSeconds != nil
	return held && time.Now().Before(s.RenewTime.Add(time.Duration(*s.LeaseDurationSeconds)*time.Second+tolerance))
}

func (f *facts) lookAtReplicas(_ context.Context, r *Result) {
	describe := "kubectl -n " + f.namespace + " describe pods, and look at the logs"
	if !Leads(&f.lease) {
		r.add(Error, "Lease "+f.namespace+"/"+LeaseName, pageProcess, describe, "no process leads: Pod webhooks, certificates, the status of SidecarSets and rollouts stand still")
	}
	if f.url == "" && !f.answers() {
		r.add(Error, "Service "+f.namespace+"/"+f.service(), "docs/troubleshooting.md#failed-calling-webhook", describe, "no replica answers API servers: selected Pods are refused")
	}
	if len(f.deployments.Items) == 0 {
		r.skip(fmt.Errorf("namespace %s has no Deployment of the operator: its Pods are elsewhere, or --operator-namespace is needed", f.namespace))
	}
	for i := range f.deployments.Items {
		d := &f.deployments.Items[i]
		object, want, ready := "Deployment "+d.Namespace+"/"+d.Name, int32(1), d.Status.ReadyReplicas
		if d.Spec.Replicas != nil {
			want = *d.Spec.Replicas
		}
		switch {
		case want == 0:
			r.add(Error, object, "docs/troubleshooting.md#failed-calling-webhook", "kubectl -n "+d.Namespace+" scale deployment "+d.Name+" --replicas=2", "is scaled to 0")
		case ready == 0:
			r.add(Error, object, pageProcess, describe, "no Pod is ready")
		case ready < want:
			r.add(Warning, object, pageProcess, describe, "%d of %d Pods are ready", ready, want)
		}
	}
}

// answers reports whether the Service of the webhooks leads to a replica.
func (f *facts) answers() bool {
	return slices.ContainsFunc(f.endpoints.Items, func(s discoveryv1.EndpointSlice) bool {
		return s.Labels[discoveryv1.LabelServiceName] == f.service() && slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool {
			return e.Conditions.Ready == nil || *e.Conditions.Ready
		})
	})
}
