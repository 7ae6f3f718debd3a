package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

// newComparator returns a handler that injects in the usual way: controller-runtime's admission
// webhook decodes the Pod as a typed object, each request compiles the selector of each
// SidecarSet, and the answer is the difference between two encodings of the whole Pod. It knows
// just enough of SidecarSets to give the fixture Pods what the operator's handler gives them.
func newComparator(sets []map[string]any) http.Handler {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		panic(fmt.Sprintf("registering core types: %v", err))
	}
	c := &comparator{decoder: admission.NewDecoder(scheme)}
	for _, set := range sets {
		typed := &appsv1beta1.SidecarSet{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(set, typed); err != nil {
			panic(fmt.Sprintf("decoding a fixture: %v", err))
		}
		c.sets = append(c.sets, typed)
	}
	return &admission.Webhook{Handler: c}
}

type comparator struct {
	decoder admission.Decoder
	sets    []*appsv1beta1.SidecarSet // as an informer would hold them
}

// Handle implements admission.Handler.
func (c *comparator) Handle(_ context.Context, request admission.Request) admission.Response {
	pod := &corev1.Pod{}
	if err := c.decoder.Decode(request, pod); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	changed := false
	for _, set := range c.sets {
		selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
		if err != nil {
			return admission.Errored(http.StatusInternalServerError, err)
		}
		if selector.Matches(labels.Set(pod.Labels)) && !hasSidecars(pod, set) {
			addSidecars(pod, set)
			changed = true
		}
	}
	if !changed {
		return admission.Allowed("")
	}
	after, err := json.Marshal(pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(request.Object.Raw, after)
}

func hasSidecars(pod *corev1.Pod, set *appsv1beta1.SidecarSet) bool {
	recorded := podstate.ParseHashes(pod.Annotations[appsv1beta1.AnnotationHash])
	return recorded.Hash(set.Name) == set.Annotations[appsv1beta1.AnnotationHash]
}

func addSidecars(pod *corev1.Pod, set *appsv1beta1.SidecarSet) {
	var before, after []corev1.Container
	for i := range set.Spec.Containers {
		sidecar := &set.Spec.Containers[i]
		addVolumes(pod, set, &sidecar.Container)
		if sidecar.PodInjectPolicy == appsv1beta1.BeforeAppContainer {
			before = append(before, marked(&sidecar.Container))
		} else {
			after = append(after, marked(&sidecar.Container))
		}
	}
	pod.Spec.Containers = slices.Concat(before, pod.Spec.Containers, after)
	for i := range set.Spec.InitContainers {
		sidecar := &set.Spec.InitContainers[i].Container
		addVolumes(pod, set, sidecar)
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, marked(sidecar))
	}
	record(pod, set)
}

// marked returns a copy of a sidecar, with the variable that marks sidecars.
func marked(sidecar *corev1.Container) corev1.Container {
	container := *sidecar.DeepCopy()
	container.Env = append(container.Env, corev1.EnvVar{Name: appsv1beta1.EnvInjected, Value: "true"})
	return container
}

func addVolumes(pod *corev1.Pod, set *appsv1beta1.SidecarSet, sidecar *corev1.Container) {
	for _, mount := range sidecar.VolumeMounts {
		named := func(v corev1.Volume) bool { return v.Name == mount.Name }
		if slices.ContainsFunc(pod.Spec.Volumes, named) {
			continue
		}
		if i := slices.IndexFunc(set.Spec.Volumes, named); i >= 0 {
			pod.Spec.Volumes = append(pod.Spec.Volumes, *set.Spec.Volumes[i].DeepCopy())
		}
	}
}

func record(pod *corev1.Pod, set *appsv1beta1.SidecarSet) {
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	var names []string
	for i := range set.Spec.Containers {
		names = append(names, set.Spec.Containers[i].Name)
	}
	slices.Sort(names)
	for _, key := range []string{appsv1beta1.AnnotationHash, appsv1beta1.AnnotationHashWithoutImage} {
		entry := podstate.HashRecord{UpdateTimestamp: now, Hash: set.Annotations[key], SidecarSetName: set.Name, SidecarList: names}
		if key == appsv1beta1.AnnotationHash {
			entry.ControllerRevision = set.Status.LatestRevision
		}
		pod.Annotations[key] = podstate.ParseHashes(pod.Annotations[key]).With(entry).String()
	}
	listed := podstate.ParseInjectedList(pod.Annotations[appsv1beta1.AnnotationInjectedList])
	pod.Annotations[appsv1beta1.AnnotationInjectedList] = strings.Join(append(listed, set.Name), ",")
}
