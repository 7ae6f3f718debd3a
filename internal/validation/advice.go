package validation

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/selectors"
)

// Advice returns what a SidecarSet leaves out that changes how a cluster treats the Pods of the
// apps: at most one line of each kind. Each line begins with a field and ends with what to do.
// None of it is wrong, so the webhook does not say it.
func Advice(set *appsv1beta1.SidecarSet) []string {
	w, spec := &warner{}, &set.Spec
	w.requests(spec)
	w.class(spec)
	w.jobs(spec)
	w.localVolumes(spec)
	return w.list
}

// affected collects containers for one line of advice.
type affected struct {
	first *field.Path
	names []string
}

func (a *affected) add(c located) {
	if a.first == nil {
		a.first = c.path
	}
	a.names = append(a.names, c.Name)
}

func (a *affected) containers() string {
	if len(a.names) == 1 {
		return "container " + a.names[0]
	}
	return "each of the containers " + strings.Join(a.names, ", ")
}

// computed are the resources that Kubernetes divides among containers.
var computed = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

// requests finds sidecars that ask for no cpu or memory. A limit counts as a request, and a
// resourcesPolicy as an answer.
func (w *warner) requests(spec *appsv1beta1.SidecarSetSpec) {
	var found affected
	for c := range containersOf(spec) {
		lacks := slices.ContainsFunc(computed, func(name corev1.ResourceName) bool {
			_, requested := c.Resources.Requests[name]
			_, limited := c.Resources.Limits[name]
			return !requested && !limited
		})
		if lacks && c.ResourcesPolicy == nil && (!c.init || c.IsNative()) {
			found.add(c)
		}
	}
	if found.first != nil {
		w.add(found.first.Child("resources", "requests"), "%s lacks a request of cpu or memory: a HorizontalPodAutoscaler whose target is a Utilization of it stops scaling the app, and the scheduler reserves nothing for the sidecar; set both", found.containers())
	}
}

// class finds containers with which a Pod cannot have the class Guaranteed.
func (w *warner) class(spec *appsv1beta1.SidecarSetSpec) {
	var found affected
	for c := range containersOf(spec) {
		unequal := slices.ContainsFunc(computed, func(name corev1.ResourceName) bool {
			limit, limited := c.Resources.Limits[name]
			request, requested := c.Resources.Requests[name]
			return !limited || requested && !request.Equal(limit)
		})
		if unequal && c.ResourcesPolicy == nil {
			found.add(c)
		}
	}
	if found.first != nil {
		w.add(found.first.Child("resources", "limits"), "%s has no cpu and memory limits that equal its requests: a Pod of the QoS class Guaranteed becomes Burstable; set them if such Pods are selected", found.containers())
	}
}

// jobs finds sidecars that keep the Pods of Jobs from completing.
func (w *warner) jobs(spec *appsv1beta1.SidecarSetSpec) {
	pods := selectors.DemandsOf(spec.Selector)
	for _, label := range []string{"batch.kubernetes.io/job-name", "job-name"} {
		if !pods.Overlap(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: label, Operator: metav1.LabelSelectorOpExists}}}) {
			return
		}
	}
	var found affected
	for c := range containersOf(spec) {
		if !c.init {
			found.add(c)
		}
	}
	if found.first != nil {
		w.add(found.first, "%s keeps a Job from completing for as long as it runs; make it a native sidecar (initContainers, restartPolicy Always), or select only Pods without the label batch.kubernetes.io/job-name", found.containers())
	}
}

// Annotations that allow the cluster autoscaler to remove a Pod with local volumes.
var evictable = []string{"cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes", "cluster-autoscaler.kubernetes.io/safe-to-evict"}

// localVolumes finds volumes because of which the cluster autoscaler keeps a node.
func (w *warner) localVolumes(spec *appsv1beta1.SidecarSetSpec) {
	for _, entry := range spec.PatchPodMetadata {
		for _, key := range evictable {
			if _, ok := entry.Annotations[key]; ok {
				return
			}
		}
	}
	used := usedVolumes(spec)
	var names []string
	var first *field.Path
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		isLocal := v.HostPath != nil || v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory
		if !isLocal || !used.Has(v.Name) {
			continue
		}
		if first == nil {
			first = field.NewPath("spec", "volumes").Index(i)
		}
		names = append(names, v.Name)
	}
	if first != nil {
		w.list = append(w.list, fmt.Sprintf("%s: the cluster autoscaler does not remove nodes with Pods that have a local volume (%s); if its files may be lost, give the Pods the annotation %s: %q",
			first, strings.Join(names, ", "), evictable[0], strings.Join(names, ",")))
	}
}
