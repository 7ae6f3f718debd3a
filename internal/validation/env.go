package validation

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateEnv(env []corev1.EnvVar, path place) {
	for i := range env {
		e, at := &env[i], path.Index(i)
		requireText(e.Name, at.Child("name"), "name the variable", validation.IsRelaxedEnvVarName)
		if e.ValueFrom == nil {
			continue
		}
		if e.Value != "" {
			at.Child("valueFrom").invalid("", "must not be set together with value; remove one of them")
		}
		validateEnvSource(e.ValueFrom, at.Child("valueFrom"))
	}
}

func validateEnvSource(source *corev1.EnvVarSource, path place) {
	validateOneOf(path, alternatives(source)...)
	if ref := source.FieldRef; ref != nil {
		validateFieldRef(ref, envFieldPaths, path.Child("fieldRef"))
	}
	ifSet(source.ResourceFieldRef, path.Child("resourceFieldRef"), validateResourceFieldRef)
	if ref := source.ConfigMapKeyRef; ref != nil {
		validateKeyRef(ref.Name, ref.Key, "ConfigMap", path.Child("configMapKeyRef"))
	}
	if ref := source.SecretKeyRef; ref != nil {
		validateKeyRef(ref.Name, ref.Key, "Secret", path.Child("secretKeyRef"))
	}
	ifSet(source.FileKeyRef, path.Child("fileKeyRef"), validateFileKeyRef)
}

func validateKeyRef(name, key, kind string, path place) {
	requireText(name, path.Child("name"), "name the "+kind, validation.IsDNS1123Subdomain)
	requireText(key, path.Child("key"), "name a key of the "+kind, validation.IsConfigMapKey)
}

func validateFileKeyRef(ref *corev1.FileKeySelector, path place) {
	requireText(ref.VolumeName, path.Child("volumeName"), "name the volume that holds the file", validation.IsDNS1123Label)
	requireText(ref.Path, path.Child("path"), "say where in the volume the file is")
	validateNoBacksteps(ref.Path, path.Child("path"))
	requireText(ref.Key, path.Child("key"), "name a variable of the file", validation.IsRelaxedEnvVarName)
}

func validateEnvFrom(sources []corev1.EnvFromSource, path place) {
	for i := range sources {
		source, at := &sources[i], path.Index(i)
		validateText(&source.Prefix, at.Child("prefix"), validation.IsRelaxedEnvVarName)
		validateOneOf(at, alternatives(source)...)
		if ref := source.ConfigMapRef; ref != nil {
			requireText(ref.Name, at.Child("configMapRef", "name"), "name the ConfigMap", validation.IsDNS1123Subdomain)
		}
		if ref := source.SecretRef; ref != nil {
			requireText(ref.Name, at.Child("secretRef", "name"), "name the Secret", validation.IsDNS1123Subdomain)
		}
	}
}

// The fields of a Pod that variables and files may show, in addition to single labels and
// annotations.
var (
	envFieldPaths = []string{
		"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs", "spec.host",
	}
	fileFieldPaths = []string{"metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid"}
)

func validateFieldRef(ref *corev1.ObjectFieldSelector, supported []string, path place) {
	at := path.Child("fieldPath")
	if ref.FieldPath == "" {
		at.required("name a field of the Pod, for example metadata.name")
		return
	}
	if ref.APIVersion != "" && ref.APIVersion != "v1" {
		path.Child("apiVersion").invalid(ref.APIVersion, "must be v1; correct or remove it")
		return
	}
	if !validateSubscript(ref.FieldPath, at) {
		validateValue(&ref.FieldPath, at, supported...)
	}
}

// validateSubscript checks a path that names one label or annotation, and reports whether it
// is such a path.
func validateSubscript(path string, at place) (subscripted bool) {
	parent, key, found := strings.Cut(path, "['")
	key, closed := strings.CutSuffix(key, "']")
	if !found || !closed {
		return false
	}
	switch parent {
	case "metadata.annotations":
		key = strings.ToLower(key)
	case "metadata.labels":
	default:
		at.invalid(path, "only metadata.labels and metadata.annotations have keys; correct it")
		return true
	}
	at.invalidBy(path, validation.IsQualifiedName(key))
	return true
}

var containerResources = sets.New(
	"limits.cpu", "limits.memory", "limits.ephemeral-storage",
	"requests.cpu", "requests.memory", "requests.ephemeral-storage",
)

func validateResourceFieldRef(ref *corev1.ResourceFieldSelector, path place) {
	at := path.Child("resource")
	if ref.Resource == "" {
		at.required("name a resource, for example limits.cpu")
		return
	}
	huge := strings.HasPrefix(ref.Resource, "limits.hugepages-") || strings.HasPrefix(ref.Resource, "requests.hugepages-")
	if !containerResources.Has(ref.Resource) && !huge {
		at.add(field.NotSupported(at.Path, ref.Resource, sets.List(containerResources)))
	}
	if !divides(ref.Resource, ref.Divisor) {
		path.Child("divisor").invalid(ref.Divisor.String(), "must be 1 or, for cpu, 1m, or for all others 1 with a unit such as 1k or 1Mi; correct or remove it")
	}
}

var byteUnits = sets.New("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")

func divides(name string, divisor resource.Quantity) bool {
	if divisor.IsZero() {
		return true
	}
	if strings.HasSuffix(name, ".cpu") {
		return divisor.String() == "1" || divisor.String() == "1m"
	}
	return byteUnits.Has(divisor.String())
}
