package requester

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// Uses lists the fields of a SidecarSet, as v1beta1 JSON, that use more than the baseline Pod
// Security Standard allows a Pod, that read Secrets, or that fetch from the Pod what may be one.
// A member of a volume's source, a security context or a variable's source that this build does
// not know counts as well.
func Uses(object map[string]any) []string {
	spec, _ := object["spec"].(map[string]any)
	enforce, _ := member(member(object, "metadata"), "annotations")[appsv1beta1.AnnotationEnforce].(string)
	f := &finder{bringsVolumes: appsv1beta1.Enforced(map[string]string{appsv1beta1.AnnotationEnforce: enforce})}
	for _, list := range []string{"initContainers", "containers"} {
		f.each(spec, list, "spec."+list, f.container)
	}
	f.each(spec, "volumes", "spec.volumes", f.volume)
	f.each(spec, "patchPodMetadata", "spec.patchPodMetadata", f.annotations)
	return f.found
}

type finder struct {
	found         []string
	bringsVolumes bool // also if the Pod has one of that name
}

// annotations adds those that take the AppArmor profile from a container of the Pod.
func (f *finder) annotations(entry map[string]any, path string) {
	all := member(entry, "annotations")
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) && all[key] == corev1.DeprecatedAppArmorBetaProfileNameUnconfined {
			f.add(path + ".annotations[" + key + "]")
		}
	}
}

func (f *finder) add(path string) { f.found = append(f.found, path) }

// each visits the objects of a list.
func (f *finder) each(parent map[string]any, member, path string, visit func(element map[string]any, path string)) {
	list, _ := parent[member].([]any)
	for i, element := range list {
		if object, ok := element.(map[string]any); ok {
			visit(object, fmt.Sprintf("%s[%d]", path, i))
		}
	}
}

// others adds the members that are neither in harmless nor empty.
func (f *finder) others(object map[string]any, path string, harmless ...string) {
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if !slices.Contains(harmless, name) && !isEmpty(object[name]) {
			f.add(path + "." + name)
		}
	}
}

func (f *finder) container(c map[string]any, path string) {
	f.securityContext(member(c, "securityContext"), path+".securityContext")
	f.each(c, "ports", path+".ports", func(port map[string]any, path string) {
		if !isEmpty(port["hostPort"]) || !isEmpty(port["hostIP"]) {
			f.add(path + ".hostPort")
		}
	})
	f.each(c, "env", path+".env", func(variable map[string]any, path string) {
		f.others(member(variable, "valueFrom"), path+".valueFrom", "fieldRef", "resourceFieldRef", "configMapKeyRef", "fileKeyRef")
	})
	f.each(c, "envFrom", path+".envFrom", func(source map[string]any, path string) {
		f.others(source, path, "configMapRef", "prefix")
	})
	for _, probe := range []string{"livenessProbe", "readinessProbe", "startupProbe"} {
		f.action(member(c, probe), path+"."+probe)
	}
	hooks := member(c, "lifecycle")
	for _, hook := range []string{"postStart", "preStop"} {
		f.action(member(hooks, hook), path+".lifecycle."+hook)
	}
	f.policies(c, path)
}

// policies adds those that fetch from the containers of a Pod what may be a Secret, a path of
// the node or a block device, and the volumes of the Pod that a container mounts by name.
func (f *finder) policies(c map[string]any, path string) {
	for _, policy := range []string{"shareVolumePolicy", "shareVolumeDevicePolicy"} {
		if member(c, policy)["type"] == string(appsv1beta1.ShareVolumePolicyEnabled) {
			f.add(path + "." + policy)
		}
	}
	if list, _ := c["transferEnv"].([]any); len(list) > 0 {
		f.add(path + ".transferEnv")
	}
	if f.bringsVolumes {
		return
	}
	for _, list := range []string{"volumeMounts", "volumeDevices"} { // of two volumes with one name, the Pod's counts
		f.each(c, list, path+"."+list, func(_ map[string]any, path string) { f.add(path + ".name") })
	}
}

// action adds a host that the kubelet would call instead of the Pod.
func (f *finder) action(action map[string]any, path string) {
	for _, kind := range []string{"httpGet", "tcpSocket"} {
		if !isEmpty(member(action, kind)["host"]) {
			f.add(path + "." + kind + ".host")
		}
	}
}

// What the baseline Pod Security Standard allows.
var (
	baselineCapabilities = []any{
		"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
	}
	baselineSELinuxTypes = []any{"container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
)

func (f *finder) securityContext(sc map[string]any, path string) {
	f.others(sc, path, "allowPrivilegeEscalation", "readOnlyRootFilesystem", "runAsUser", "runAsGroup", "runAsNonRoot",
		"capabilities", "seccompProfile", "appArmorProfile", "seLinuxOptions", "procMount", "windowsOptions")
	add, _ := member(sc, "capabilities")["add"].([]any)
	if slices.ContainsFunc(add, func(capability any) bool { return !slices.Contains(baselineCapabilities, capability) }) {
		f.add(path + ".capabilities.add")
	}
	for _, profile := range []string{"seccompProfile", "appArmorProfile"} {
		if !oneOf(member(sc, profile)["type"], "RuntimeDefault", "Localhost") {
			f.add(path + "." + profile)
		}
	}
	if !oneOf(sc["procMount"], "Default") {
		f.add(path + ".procMount")
	}
	f.others(member(sc, "windowsOptions"), path+".windowsOptions", "gmsaCredentialSpec", "gmsaCredentialSpecName", "runAsUserName")
	f.others(member(sc, "seLinuxOptions"), path+".seLinuxOptions", "level", "type")
	if !oneOf(member(sc, "seLinuxOptions")["type"], baselineSELinuxTypes...) {
		f.add(path + ".seLinuxOptions.type")
	}
}

func (f *finder) volume(v map[string]any, path string) {
	f.others(v, path, "name", "emptyDir", "configMap", "downwardAPI", "persistentVolumeClaim", "ephemeral", "image", "projected", "csi")
	f.each(member(v, "projected"), "sources", path+".projected.sources", func(source map[string]any, path string) {
		f.others(source, path, "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle")
	})
	if !isEmpty(member(v, "csi")["nodePublishSecretRef"]) {
		f.add(path + ".csi.nodePublishSecretRef")
	}
}

func member(object map[string]any, name string) map[string]any {
	value, _ := object[name].(map[string]any)
	return value
}

// oneOf reports whether a value is absent, or one of values.
func oneOf(value any, values ...any) bool {
	return isEmpty(value) || slices.Contains(values, value)
}

// isEmpty reports whether a value means the same as an absent one. An empty object does not:
// emptyDir: {} chooses a source.
func isEmpty(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case []any:
		return len(value) == 0
	case map[string]any:
		return false
	}
	return reflect.ValueOf(value).IsZero()
}
