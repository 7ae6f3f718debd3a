package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
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
		r.add(Error, "Lease "+f.namespace+"/"+LeaseName, pageProcess, describe, "no process leads: webhook entries, certificates, the status of SidecarSets and rollouts stand still")
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
			r.add(Error, object, pageProcess, describe, "no Pod is ready%s", f.why(d))
		case ready < want:
			r.add(Warning, object, pageProcess, describe, "%d of %d Pods are ready%s", ready, want, f.why(d))
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

// why is the first reason why a Pod of a Deployment does not run, or was not created.
func (f *facts) why(d *appsv1.Deployment) string {
	selected, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return "" // API servers refuse such Deployments
	}
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			return ": " + c.Message
		}
	}
	for i := range f.pods.Items {
		p := &f.pods.Items[i]
		if !selected.Matches(labels.Set(p.Labels)) {
			continue
		}
		for _, c := range p.Status.ContainerStatuses {
			if waiting := c.State.Waiting; waiting != nil {
				return fmt.Sprintf(": Pod %s: %s %s", p.Name, waiting.Reason, waiting.Message)
			}
		}
		for _, c := range p.Status.Conditions {
			if c.Status == corev1.ConditionFalse && c.Message != "" {
				return fmt.Sprintf(": Pod %s: %s", p.Name, c.Message)
			}
		}
	}
	return ""
}

// oldestMinor is the oldest minor version of Kubernetes 1 that docs/reference/versions.md names.
const oldestMinor = 31

func (f *facts) lookAtVersions(_ context.Context, r *Result) {
	var minor int
	c, err := discovery.NewDiscoveryClientForConfig(f.Config)
	if err == nil {
		var info *version.Info
		if info, err = c.ServerVersion(); err == nil {
			minor, err = strconv.Atoi(strings.TrimRight(info.Minor, "+"))
		}
	}
	if err != nil {
		r.skip(fmt.Errorf("the version of Kubernetes: %w", err))
	} else if minor < oldestMinor {
		r.add(Error, fmt.Sprintf("Kubernetes 1.%d", minor), "docs/reference/versions.md", "upgrade the cluster", "the operator is made for Kubernetes 1.%d and later", oldestMinor)
	}
	f.lookAtImages(r)
}

// lookAtImages compares the operator's images with the plugin's version.
func (f *facts) lookAtImages(r *Result) {
	images := map[string]bool{}
	for i := range f.pods.Items {
		for _, c := range f.pods.Items[i].Spec.Containers {
			image, _, _ := strings.Cut(c.Image, "@")
			images[image] = c.Name == "operator" && !strings.HasSuffix(image, ":"+f.Version)
		}
	}
	maps.DeleteFunc(images, func(_ string, differs bool) bool { return !differs })
	if len(images) > 0 {
		r.add(Warning, "the plugin", "docs/upgrade.md#upgrade-and-rollback", "use the plugin of the operator's version; if there are several images, let the rollout end",
			"has version %s, and the operator runs %s: if that is another version, what the plugin predicts may differ", f.Version, brief(slices.Sorted(maps.Keys(images))))
	}
}
