// Package bench measures one Pod admission, from the bytes of the AdmissionReview to the bytes of
// the answer, and compares it with a comparator that does the same in the usual way. It knows
// how to make the fixtures, how to run both, and how to compare them fairly. Only benchmarks and
// tests use it.
package bench

import (
	"encoding/json"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Namespace is where every fixture Pod is created.
const Namespace = "shop"

// PodSize says how much a fixture Pod has.
type PodSize struct {
	Name                     string
	containers, env, volumes int
	annotationBytes          int
	valueBytes               int
}

var (
	// Small is an ordinary Pod of a Deployment, about 9 KB of JSON.
	Small = PodSize{Name: "9KB", containers: 3, env: 2, volumes: 1}
	// Big is a Pod of about 60 KB, like those that platforms generate.
	Big = PodSize{Name: "60KB", containers: 8, env: 25, volumes: 18, annotationBytes: 5 << 10, valueBytes: 34}
)

// Pod returns the Pod of that size. If selected is true, it has the label that the matching
// SidecarSet of SidecarSets selects. Otherwise only that label's value is different.
func (s PodSize) Pod(selected bool) *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: s.metadata(selected),
		Spec:       s.spec(),
	}
	pod.ManagedFields = []metav1.ManagedFieldsEntry{managedFields(pod)}
	return pod
}

func (s PodSize) metadata(selected bool) metav1.ObjectMeta {
	app := "unselected"
	if selected {
		app = matchingApp
	}
	meta := metav1.ObjectMeta{
		GenerateName: "checkout-6d5f7c9b8d-",
		Labels: map[string]string{
			"app": app, "app.kubernetes.io/instance": "checkout", "app.kubernetes.io/part-of": "shop", "tier": "backend",
			"team": "payments", "pod-template-hash": "6d5f7c9b8d", "version": "v42",
		},
		Annotations: map[string]string{
			"prometheus.io/scrape": "true", "prometheus.io/port": "9102", "checksum/config": strings.Repeat("0a1b2c3d", 8),
		},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "checkout-6d5f7c9b8d", UID: "f1b2a3c4-0000-4000-8000-1234567890ab",
			Controller: new(true), BlockOwnerDeletion: new(true),
		}},
	}
	if s.annotationBytes > 0 {
		meta.Annotations["example.com/settings"] = strings.Repeat(`{"key":"value"},`, s.annotationBytes/16)
	}
	return meta
}

func (s PodSize) spec() corev1.PodSpec {
	spec := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst, SchedulerName: "default-scheduler",
		ServiceAccountName: "checkout", DeprecatedServiceAccount: "checkout", EnableServiceLinks: new(true),
		PreemptionPolicy: new(corev1.PreemptLowerPriority), Priority: new(int32(0)),
		TerminationGracePeriodSeconds: new(int64(30)), SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true)},
		Tolerations: []corev1.Toleration{
			{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))},
			{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))},
		},
	}
	for i := range s.containers {
		spec.Containers = append(spec.Containers, s.container(i))
	}
	for i := range s.volumes {
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: fmt.Sprintf("volume-%d", i), VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: fmt.Sprintf("checkout-config-%d", i)}, DefaultMode: new(int32(420))},
		}})
	}
	spec.Volumes = append(spec.Volumes, tokenVolume())
	return spec
}

func (s PodSize) container(i int) corev1.Container {
	c := corev1.Container{
		Name: fmt.Sprintf("app-%d", i), Image: fmt.Sprintf("registry.example.com/shop/app-%d:v1.42.7", i),
		Command: []string{"/bin/app"}, Args: []string{"--listen=:8080", "--log-format=json"},
		Ports:           []corev1.ContainerPort{{Name: "http", ContainerPort: int32(8080 + i), Protocol: corev1.ProtocolTCP}},
		ImagePullPolicy: corev1.PullIfNotPresent,
		Resources: corev1.ResourceRequirements{
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("256Mi")},
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
		},
		LivenessProbe:            probe("/healthz", 20),
		ReadinessProbe:           probe("/readyz", 5),
		TerminationMessagePath:   "/dev/termination-log",
		TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		VolumeMounts:             []corev1.VolumeMount{{Name: "kube-api-access-x7k2p", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true}},
	}
	for e := range s.env {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%02d", e), Value: fmt.Sprintf("some-value-of-setting-%d-%s", e, strings.Repeat("x", s.valueBytes))})
	}
	for v := range min(s.volumes, 3) {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: fmt.Sprintf("volume-%d", v), MountPath: fmt.Sprintf("/etc/app/%d", v), ReadOnly: true})
	}
	return c
}

func probe(path string, period int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:        corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("http"), Scheme: corev1.URISchemeHTTP}},
		InitialDelaySeconds: 5, TimeoutSeconds: 1, PeriodSeconds: period, SuccessThreshold: 1, FailureThreshold: 3,
	}
}

// tokenVolume is the volume that the ServiceAccount admission plugin adds before the API server
// calls webhooks.
func tokenVolume() corev1.Volume {
	return corev1.Volume{Name: "kube-api-access-x7k2p", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: new(int32(420)),
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(3607))}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}}}}},
		},
	}}}
}

// managedFields owns every field of pod, in the encoding of server-side apply.
func managedFields(pod *corev1.Pod) metav1.ManagedFieldsEntry {
	var tree map[string]any
	if err := json.Unmarshal(mustEncode(pod), &tree); err != nil {
		panic(fmt.Sprintf("decoding a fixture: %v", err))
	}
	return metav1.ManagedFieldsEntry{
		Manager: "manager-0", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
		Time: new(metav1.Unix(1_790_000_000, 0).Rfc3339Copy()), FieldsV1: metav1.NewFieldsV1(string(mustEncode(fieldSet(tree)))),
	}
}

func fieldSet(value any) map[string]any {
	set := map[string]any{}
	switch value := value.(type) {
	case map[string]any:
		for key, member := range value {
			set["f:"+key] = fieldSet(member)
		}
	case []any:
		for _, element := range value {
			if object, ok := element.(map[string]any); ok && object["name"] != nil {
				members := fieldSet(object)
				members["."] = map[string]any{}
				set["k:"+string(mustEncode(map[string]any{"name": object["name"]}))] = members
			}
		}
	}
	return set
}

// Review returns the AdmissionReview that an API server sends for the creation
// of pod.
func Review(pod runtime.Object) []byte {
	return mustEncode(&admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{Kind: "AdmissionReview", APIVersion: "admission.k8s.io/v1"},
		Request: &admissionv1.AdmissionRequest{
			UID:             types.UID("3f0f3a5e-8c6e-4d5b-9f0a-2f1e0d9c8b7a"),
			Kind:            metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
			Resource:        metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			RequestKind:     &metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
			RequestResource: &metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			Namespace:       Namespace,
			Operation:       admissionv1.Create,
			Object:          runtime.RawExtension{Raw: mustEncode(pod)},
			DryRun:          new(false),
			Options:         runtime.RawExtension{Raw: []byte(`{"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1"}`)},
		},
	})
}

func mustEncode(value any) []byte {
	data, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("encoding a fixture: %v", err)) // fixtures are built from constants
	}
	return data
}
