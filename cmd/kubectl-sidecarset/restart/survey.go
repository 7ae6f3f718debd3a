// Package restart replaces Pods that cannot be updated in place or lack sidecars: it has their
// workloads restarted, after one Pod of each was tried.
package restart

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Workload is a controller of Pods that need to be replaced.
type Workload struct {
	Kind, Namespace, Name string
	UID                   types.UID
	// Object is the Deployment, StatefulSet or DaemonSet; nil for another controller.
	Object client.Object
	// Reasons counts the Pods to replace by why they need it.
	Reasons map[string]int
	// Named says why the workload is not restarted; "" if it is.
	Named string
	// Warning is what will happen in addition.
	Warning string
	// Evict: its Pods are evicted one by one, and the workload is not restarted.
	Evict bool
}

func (w *Workload) String() string { return w.Kind + " " + w.Namespace + "/" + w.Name }

// Pods is how many Pods are to be replaced.
func (w *Workload) Pods() (n int) {
	for _, pods := range w.Reasons {
		n += pods
	}
	return n
}

// Why counts the Pods by reason, such as "2 ImmutableFieldChanged, 1 SidecarsMissing".
func (w *Workload) Why() string {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(w.Reasons)) {
		parts = append(parts, fmt.Sprintf("%d %s", w.Reasons[reason], reason))
	}
	return strings.Join(parts, ", ")
}

// Left is a Pod that is not replaced, and why.
type Left struct {
	Pod *corev1.Pod
	Why string
}

// Survey is what is to be replaced.
type Survey struct {
	Workloads []*Workload
	Left      []Left
}

// Find finds the workloads of Pods that need to be replaced. With evict, the Pods of those that
// are not restarted are evicted. A Pod that would come back as it is stays.
func Find(ctx context.Context, c client.Client, judge *Judge, pods []*corev1.Pod, evict bool) (*Survey, error) {
	f := &finder{Owners: Owners{Client: c}, found: map[types.UID]*Workload{}}
	s := &Survey{}
	needs, leftOut := make([]Need, len(pods)), map[types.UID]string{} // by owner
	for i, pod := range pods {
		var err error
		if needs[i], err = judge.Needs(ctx, pod); err != nil {
			return nil, fmt.Errorf("Pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		if needs[i].LeftOut {
			owner, err := f.Of(ctx, pod)
			if err != nil {
				return nil, err
			}
			if owner != nil {
				leftOut[owner.UID] = pod.Name
			}
		}
	}
	for i, pod := range pods {
		need := &needs[i]
		if need.Reason == "" {
			continue
		}
		if stays := cmp.Or(need.Stays, neverReplaced(pod)); stays != "" {
			s.Left = append(s.Left, Left{pod, stays})
			continue
		}
		w, err := f.workload(ctx, pod)
		if err != nil {
			return nil, err
		}
		if name := leftOut[w.UID]; name != "" && w.Named == "" {
			w.Named = "updateStrategy.selector leaves out its Pod " + name + ", which a restart would replace"
		}
		if w.Evict = evict && w.Named != ""; w.Evict && isProtected(pod) {
			s.Left = append(s.Left, Left{pod, "an annotation forbids to evict it"})
			continue
		}
		w.Reasons[need.Reason]++
	}
	for _, w := range f.found {
		if w.Pods() > 0 {
			s.Workloads = append(s.Workloads, w)
		}
	}
	slices.SortFunc(s.Workloads, func(a, b *Workload) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(s.Left, func(a, b Left) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
	})
	return s, nil
}

// neverReplaced says why only the user who created a Pod may replace it; "" if the command may.
func neverReplaced(pod *corev1.Pod) string {
	owner := metav1.GetControllerOf(pod)
	switch {
	case owner == nil:
		return "no controller would replace it: delete it, and create it again from its manifest"
	case owner.Kind == "Job" && strings.HasPrefix(owner.APIVersion, batchv1.GroupName+"/"):
		return "it belongs to a Job: let it finish"
	case pod.Spec.RestartPolicy == corev1.RestartPolicyNever, pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure:
		return "it runs to completion: let it finish"
	}
	return ""
}

// Owners finds the controllers of Pods. It remembers ReplicaSets. It is not safe for concurrent use.
type Owners struct {
	Client      client.Client
	replicaSets map[types.UID]*metav1.OwnerReference // of what controls them; nil for nothing
}

// Of returns the controller of a Pod: of a ReplicaSet's Pod its Deployment, if it has one.
func (o *Owners) Of(ctx context.Context, pod *corev1.Pod) (*metav1.OwnerReference, error) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "ReplicaSet" || !isApps(owner) {
		return owner, nil
	}
	above, known := o.replicaSets[owner.UID]
	if !known {
		var set metav1.PartialObjectMetadata
		set.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))
		err := o.Client.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: owner.Name}, &set)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("reading ReplicaSet %s/%s: %w", pod.Namespace, owner.Name, err)
		}
		if err == nil && set.UID == owner.UID {
			above = metav1.GetControllerOf(&set)
		}
		if o.replicaSets == nil {
			o.replicaSets = map[types.UID]*metav1.OwnerReference{}
		}
		o.replicaSets[owner.UID] = above
	}
	if above != nil {
		return above, nil
	}
	return owner, nil
}

func isApps(o *metav1.OwnerReference) bool {
	return strings.HasPrefix(o.APIVersion, appsv1.GroupName+"/")
}

type finder struct {
	Owners
	found map[types.UID]*Workload
}

// workload finds or reads the workload of a Pod that has a controller.
func (f *finder) workload(ctx context.Context, pod *corev1.Pod) (*Workload, error) {
	owner, err := f.Of(ctx, pod)
	if err != nil {
		return nil, err
	}
	if w := f.found[owner.UID]; w != nil {
		return w, nil
	}
	w := &Workload{Kind: owner.Kind, Namespace: pod.Namespace, Name: owner.Name, UID: owner.UID, Reasons: map[string]int{}}
	f.found[owner.UID] = w
	if w.Object = newObject(owner); w.Object == nil {
		w.Named = "kubectl sidecarset does not know how to restart a " + owner.Kind
		return w, nil
	}
	if err := f.Client.Get(ctx, client.ObjectKey{Namespace: w.Namespace, Name: w.Name}, w.Object); apierrors.IsNotFound(err) {
		w.Object, w.Named = nil, "it is being deleted"
		return w, nil
	} else if err != nil {
		return nil, fmt.Errorf("reading %s: %w", w, err)
	}
	w.Named, w.Warning = notRestarted(w.Object), gitOps(w.Object)
	return w, nil
}

// newObject is an empty object of a kind that can be restarted; nil for other kinds.
func newObject(owner *metav1.OwnerReference) client.Object {
	switch {
	case !isApps(owner):
	case owner.Kind == "Deployment":
		return &appsv1.Deployment{}
	case owner.Kind == "StatefulSet":
		return &appsv1.StatefulSet{}
	case owner.Kind == "DaemonSet":
		return &appsv1.DaemonSet{}
	}
	return nil
}

// notRestarted says why a restart of a workload would not replace its Pods, or must not be done
// here; "" if it can be restarted.
func notRestarted(object client.Object) string {
	if owner := metav1.GetControllerOf(object); owner != nil {
		return fmt.Sprintf("%s %s controls it, and would take the restart back: restart it there", owner.Kind, owner.Name)
	}
	switch o := object.(type) {
	case *appsv1.Deployment:
		if o.Spec.Paused {
			return "it is paused: kubectl rollout resume deployment/" + o.Name + " -n " + o.Namespace
		}
	case *appsv1.StatefulSet:
		if o.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
			return "its updateStrategy is OnDelete: delete its Pods"
		}
		if r := o.Spec.UpdateStrategy.RollingUpdate; r != nil && r.Partition != nil && *r.Partition > 0 {
			return fmt.Sprintf("its own partition %d would keep Pods: set it to 0", *r.Partition)
		}
	case *appsv1.DaemonSet:
		if o.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
			return "its updateStrategy is OnDelete: delete its Pods"
		}
	}
	return ""
}

// gitOps warns where a program keeps the template of a workload as it is in a repository.
func gitOps(object client.Object) string {
	labels := object.GetLabels()
	isOf := func(managers ...string) bool {
		return slices.ContainsFunc(object.GetManagedFields(), func(m metav1.ManagedFieldsEntry) bool { return slices.Contains(managers, m.Manager) })
	}
	switch {
	case labels["kustomize.toolkit.fluxcd.io/name"] != "", labels["helm.toolkit.fluxcd.io/name"] != "", isOf("kustomize-controller", "helm-controller"):
		return "Flux manages it, and may remove the annotation of the restart: its Pods are then replaced once more"
	case object.GetAnnotations()["argocd.argoproj.io/tracking-id"] != "", labels["argocd.argoproj.io/instance"] != "", isOf("argocd-controller", "argocd-application-controller"):
		return "Argo CD manages it, and may show the annotation of the restart as a difference, or remove it: its Pods are then replaced once more"
	}
	return ""
}

// surges reports whether a restart of a workload begins with one more Pod, and has only one to
// replace: then nothing has to be tried before.
func surges(object client.Object) bool {
	d, is := object.(*appsv1.Deployment)
	if !is || d.Spec.Replicas != nil && *d.Spec.Replicas != 1 || d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return false
	}
	if r := d.Spec.Strategy.RollingUpdate; r != nil && r.MaxSurge != nil {
		n, err := intstr.GetScaledValueFromIntOrPercent(r.MaxSurge, 1, true)
		return err == nil && n > 0
	}
	return true // 25 %, rounded up
}

// isProtected reports whether an annotation of a Pod forbids to evict it.
func isProtected(pod *corev1.Pod) bool {
	disrupt := pod.Annotations["karpenter.sh/do-not-disrupt"]
	return pod.Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false" || disrupt != "" && disrupt != "false"
}
