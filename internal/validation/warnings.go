package validation

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1alpha1 "github.com/sidecarset/operator/apis/apps/v1alpha1"
	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/selectors"
)

// Warnings returns what may be stored and will probably not do what the user expects:
// fields that OpenKruise accepts although they cannot work, fields that may clash with other
// SidecarSets, and changes that running Pods will not get. Each warning begins with a field
// and ends with what to do.
func Warnings(set *appsv1beta1.SidecarSet, env Environment) []string {
	w := &warner{}
	spec, path := &set.Spec, field.NewPath("spec")
	named, _ := selectors.DemandsOf(spec.NamespaceSelector).Named()
	for _, namespace := range sets.List(named) {
		if slices.Contains(env.ExcludedNamespaces, namespace) {
			w.add(path.Child("namespaceSelector"), "names %s, whose Pods are never injected; the operator's administrator can change the excluded namespaces", namespace)
		}
	}
	if reason := SelectsNothing(spec, env.ExcludedNamespaces); reason != "" && len(w.list) == 0 {
		w.list = append(w.list, reason)
	}
	if set.Annotations[appsv1beta1.AnnotationNewPods] == appsv1beta1.StableNewPods && spec.InjectionStrategy.Revision != nil {
		w.add(field.NewPath("metadata", "annotations").Key(appsv1beta1.AnnotationNewPods), "has no effect while spec.injectionStrategy.revision is set; remove one of them")
	}
	w.spec(spec, path)
	w.required(set, env.Stored)
	w.list = append(w.list, env.Conflicts.warned...)
	if env.Replaced != nil && spec.UpdateStrategy.Type == appsv1beta1.RollingUpdateSidecarSetStrategyType {
		w.update(env)
	}
	return w.list
}

type warner struct {
	list []string
	// propagates: a container of the SidecarSet mounts with a mountPropagation. Then
	// its Pods are likely to be of those that mount file systems for others.
	propagates bool
	// names are those that the containers of the SidecarSet have in Pods.
	names sets.Set[string]
}

func (w *warner) add(path *field.Path, format string, args ...any) {
	w.list = append(w.list, path.String()+": "+fmt.Sprintf(format, args...))
}

func (w *warner) spec(spec *appsv1beta1.SidecarSetSpec, path *field.Path) {
	w.names = sets.New[string]()
	for c := range containersOf(spec) {
		w.names.Insert(c.namesInPod()...)
		w.propagates = w.propagates || propagatesMounts(c.VolumeMounts)
	}
	for i := range spec.InitContainers {
		w.initContainer(&spec.InitContainers[i], path.Child("initContainers").Index(i))
	}
	for i := range spec.Containers {
		c, at := &spec.Containers[i], path.Child("containers").Index(i)
		w.container(c, at)
		w.pairProbes(c, at)
	}
	w.unusedVolumes(spec, path.Child("volumes"))
	w.updateStrategy(&spec.UpdateStrategy, path.Child("updateStrategy"))
	w.injectionStrategy(spec, path.Child("injectionStrategy"))
	for i, secret := range spec.ImagePullSecrets {
		if secret.Name == "" {
			w.add(path.Child("imagePullSecrets").Index(i).Child("name"), "is empty, which adds no Secret; name one or remove the entry")
		}
	}
	if spec.RevisionHistoryLimit != nil && *spec.RevisionHistoryLimit < 1 {
		w.add(path.Child("revisionHistoryLimit"), "is %d and means 1: none but the current revision is kept; use 1 or more", *spec.RevisionHistoryLimit)
	}
	for i := range spec.PatchPodMetadata {
		w.patch(&spec.PatchPodMetadata[i], path.Child("patchPodMetadata").Index(i))
	}
	if problems := validation.IsValidLabelValue(spec.CustomVersion); len(problems) > 0 {
		w.add(path.Child("customVersion"), "cannot be a label's value, so that no revision has it, and clients of v1alpha1 neither see nor keep it; use up to 63 letters, digits, '-', '_' and '.'")
	}
}

// container checks what both lists have in common.
func (w *warner) container(c *appsv1beta1.SidecarContainer, path *field.Path) {
	if t := c.UpgradeStrategy.UpgradeType; t != "" && t != appsv1beta1.SidecarContainerColdUpgrade && t != appsv1beta1.SidecarContainerHotUpgrade {
		w.add(path.Child("upgradeStrategy", "upgradeType"), "%q is unknown and means ColdUpgrade; use ColdUpgrade or HotUpgrade", t)
	}
	if share := c.ShareVolumeDevicePolicy; share != nil && !slices.Contains(sharePolicies, share.Type) {
		w.add(path.Child("shareVolumeDevicePolicy", "type"), "%q is unknown and means disabled; use enabled or disabled", share.Type)
	}
	if c.ShareVolumePolicy.Type == appsv1beta1.ShareVolumePolicyEnabled && !isPrivileged(&c.Container) && w.propagates {
		w.add(path.Child("shareVolumePolicy"), "a Pod that mounts with mountPropagation Bidirectional is refused, since this sidecar is not privileged; do not select such Pods")
	}
	has := sets.New[string]()
	for i := range c.Env {
		has.Insert(c.Env[i].Name)
	}
	for i := range c.TransferEnv {
		w.transfer(&c.TransferEnv[i], has, path.Child("transferEnv").Index(i))
	}
	for i := range c.Env {
		if e := &c.Env[i]; e.Name == appsv1beta1.EnvInjected && (e.Value != "true" || e.ValueFrom != nil) {
			w.add(path.Child("env").Index(i), "%s is set to true by the operator; remove it", e.Name)
		}
	}
	w.kruiseVariables(c, path.Child("env"))
}

func propagatesMounts(mounts []corev1.VolumeMount) bool {
	return slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool {
		return m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone
	})
}

func (w *warner) initContainer(c *appsv1beta1.SidecarContainer, path *field.Path) {
	w.container(c, path)
	if !slices.Contains(injectPolicies, c.PodInjectPolicy) {
		w.add(path.Child("podInjectPolicy"), "%q is unknown and means AfterAppContainer; use BeforeAppContainer or AfterAppContainer", c.PodInjectPolicy)
	}
	if !slices.Contains(sharePolicies, c.ShareVolumePolicy.Type) {
		w.add(path.Child("shareVolumePolicy", "type"), "%q is unknown and means disabled; use enabled or disabled", c.ShareVolumePolicy.Type)
	}
	var errs field.ErrorList
	validateTransferEnv(c.TransferEnv, place{path.Child("transferEnv"), &errs})
	for _, err := range errs {
		w.list = append(w.list, err.Error())
	}
	if !c.IsNative() && c.IsHotUpgrade() {
		w.add(path.Child("upgradeStrategy", "upgradeType"), "HotUpgrade has no effect on an init container that ends; remove it or set restartPolicy Always")
	} else {
		w.pairProbes(c, path)
	}
}

// transfer finds entries of transferEnv that copy nothing into a sidecar that has these variables.
func (w *warner) transfer(t *appsv1beta1.TransferEnvVar, has sets.Set[string], path *field.Path) {
	from := t.SourceContainerNameFrom
	for _, name := range append(slices.Clone(t.EnvNames), t.EnvName) {
		if name != "" && has.Has(name) {
			w.add(path, "%s is not copied, because the sidecar has it in env; remove it here or there", name)
		}
	}
	switch byName := from == nil || from.FieldRef == nil; {
	case t.SourceContainerName == "" && byName:
		w.add(path, "names no container to copy from, so that nothing is copied; set sourceContainerName or sourceContainerNameFrom.fieldRef")
	case w.names.Has(t.SourceContainerName) && byName:
		w.add(path.Child("sourceContainerName"), "%s is a container of this SidecarSet, and variables are copied from the Pod's own containers only; name one of these", t.SourceContainerName)
	case t.EnvName == "" && len(t.EnvNames) == 0:
		w.add(path, "names no variable, so that nothing is copied; set envName or envNames")
	}
}

// unusedVolumes warns about volumes that are not added to Pods, because no container mounts
// them.
func (w *warner) unusedVolumes(spec *appsv1beta1.SidecarSetSpec, path *field.Path) {
	used := usedVolumes(spec)
	for i := range spec.Volumes {
		if name := spec.Volumes[i].Name; !used.Has(name) {
			w.add(path.Index(i), "%s is mounted by no container of this SidecarSet and not added to Pods; mount it or remove it", name)
		}
	}
}

func (w *warner) updateStrategy(s *appsv1beta1.SidecarSetUpdateStrategy, path *field.Path) {
	switch s.Type {
	case appsv1beta1.NotUpdateSidecarSetStrategyType:
		return
	case appsv1beta1.RollingUpdateSidecarSetStrategyType:
	default:
		w.add(path.Child("type"), "%q is unknown and updates no running Pod; use RollingUpdate or NotUpdate", s.Type)
		return
	}
	if s.MaxUnavailable != nil && (*s.MaxUnavailable == intstr.FromInt32(0) || *s.MaxUnavailable == intstr.FromString("0%")) {
		w.add(path.Child("maxUnavailable"), "is 0, so that no Pod is ever updated; use 1 or more")
	}
	if percent, err := intstr.GetScaledValueFromIntOrPercent(s.Partition, 100, true); s.Partition != nil && s.Partition.Type == intstr.String && err == nil && percent > 100 {
		w.add(path.Child("partition"), "is more than 100%%, which means 100%%: no Pod is updated; use 0%% to 100%%")
	}
}

func (w *warner) injectionStrategy(spec *appsv1beta1.SidecarSetSpec, path *field.Path) {
	revision := spec.InjectionStrategy.Revision
	if revision == nil {
		return
	}
	partition := spec.UpdateStrategy.Partition
	if revision.Policy == appsv1beta1.PartialSidecarSetInjectRevisionPolicy && spec.UpdateStrategy.Type != appsv1beta1.RollingUpdateSidecarSetStrategyType {
		w.choice(&spec.UpdateStrategy)
	}
	switch {
	case revision.Policy == appsv1beta1.PartialSidecarSetInjectRevisionPolicy && (partition == nil || partition.Type == intstr.Int):
		w.add(path.Child("revision", "policy"), "Partial needs updateStrategy.partition as a percentage, otherwise every Pod that updateStrategy.selector matches gets the current revision; set it, for example 50%%")
	case revision.Policy == appsv1beta1.AlwaysSidecarSetInjectRevisionPolicy && spec.UpdateStrategy.Selector != nil:
		w.add(path.Child("revision", "policy"), "Always ignores updateStrategy.selector; use Partial to inject the current revision into the Pods that it matches")
	}
}

// choice checks the fields by which Partial decides. A rolling update with such a problem is
// refused; with other types of updates it is stored.
func (w *warner) choice(s *appsv1beta1.SidecarSetUpdateStrategy) {
	path := field.NewPath("spec", "updateStrategy")
	if s.Partition != nil && s.Partition.Type == intstr.String && !isPercentage(s.Partition.StrVal) {
		w.add(path.Child("partition"), "%q is neither a number nor a percentage, so that Partial refuses Pods; correct it, for example 50%%", s.Partition.StrVal)
	}
	if _, err := metav1.LabelSelectorAsSelector(s.Selector); err != nil {
		w.add(path.Child("selector"), "cannot be compiled, so that Partial refuses all Pods; correct it: %v", err)
	}
}

func (w *warner) patch(entry *appsv1beta1.SidecarSetPatchPodMetadata, path *field.Path) {
	if _, ok := entry.Annotations[kruiseLaunchPriority]; ok {
		w.add(path.Child("annotations").Key(kruiseLaunchPriority), "only OpenKruise acts on it; without OpenKruise, put a sidecar that is to start before the app into initContainers with restartPolicy Always, and remove the annotation")
	}
	switch entry.PatchPolicy {
	case "", appsv1beta1.SidecarSetRetainPatchPolicy, appsv1beta1.SidecarSetOverwritePatchPolicy:
	case appsv1beta1.SidecarSetMergePatchJsonPatchPolicy:
		for _, key := range slices.Sorted(maps.Keys(entry.Annotations)) {
			if !json.Valid([]byte(entry.Annotations[key])) {
				w.add(path.Child("annotations").Key(key), "is not JSON, so a Pod that has this annotation is refused; correct it or use another patchPolicy")
			}
		}
	default:
		w.add(path.Child("patchPolicy"), "%q is unknown, so that the entry is ignored; use Retain, Overwrite or MergePatchJson", entry.PatchPolicy)
	}
}

// kruiseLaunchPriority is the annotation of Pods by which OpenKruise starts containers in their
// order.
const kruiseLaunchPriority = "apps.kruise.io/container-launch-priority"

// What the variables of OpenKruise are for.
const (
	startsFirst = "starts before the app"
	endsWithJob = "ends with the app of a Job"
)

// kruiseVariables are the variables on which parts of OpenKruise other than its SidecarSets act, with
// what a native sidecar does instead.
var kruiseVariables = map[string]string{
	"KRUISE_CONTAINER_PRIORITY":                         startsFirst,
	"KRUISE_CONTAINER_BARRIER":                          startsFirst,
	"KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT":            endsWithJob,
	"KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT_WITH_IMAGE": endsWithJob,
	"KRUISE_TERMINATE_SIDECAR_IGNORE_EXIT_CODE":         endsWithJob,
}

// kruiseVariables finds variables on which only OpenKruise acts.
func (w *warner) kruiseVariables(c *appsv1beta1.SidecarContainer, path *field.Path) {
	for i := range c.Env {
		name := c.Env[i].Name
		if does, ok := kruiseVariables[name]; ok {
			w.add(path.Index(i).Child("name"), "only OpenKruise acts on %s; without OpenKruise, use a native sidecar (an element of initContainers with restartPolicy Always), which %s, and remove the variable", name, does)
		}
	}
}

// pairProbes finds probes of a hot-upgrade sidecar that do not tell its two containers apart,
// because both have the Pod's address.
func (w *warner) pairProbes(c *appsv1beta1.SidecarContainer, path *field.Path) {
	if !c.IsHotUpgrade() {
		return
	}
	for _, of := range []struct {
		name  string
		probe *corev1.Probe
	}{{"livenessProbe", c.LivenessProbe}, {"readinessProbe", c.ReadinessProbe}, {"startupProbe", c.StartupProbe}} {
		if p := of.probe; p != nil && (p.HTTPGet != nil || p.TCPSocket != nil || p.GRPC != nil) {
			w.add(path.Child(of.name), "HotUpgrade probes both containers at the same port of the Pod, so that one of them can answer for the other, and a hot upgrade goes on before the new one serves; use exec")
		}
	}
}

// IgnoredSelector is the warning about a namespaceSelector of v1alpha1 that has no effect.
const IgnoredSelector = "spec.namespaceSelector: is ignored beside spec.namespace; remove one of them"

// Ignored warns about members of a v1alpha1 manifest that the conversion to v1beta1 drops.
func Ignored(sent map[string]any) []string {
	spec := specOf(sent)
	namespace, _ := spec["namespace"].(string)
	if sent["apiVersion"] == appsv1alpha1.GroupVersion.String() && namespace != "" && spec["namespaceSelector"] != nil {
		return []string{IgnoredSelector}
	}
	return nil
}

func isPrivileged(c *corev1.Container) bool {
	return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
}
