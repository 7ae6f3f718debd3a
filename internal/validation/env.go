package validation

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateEnv(env []corev1.EnvVar, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range env {
		e, at := &env[i], path.Index(i)
		if e.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), "name the variable"))
		} else {
			errs = append(errs, invalid(at.Child("name"), e.Name, validation.IsRelaxedEnvVarName(e.Name))...)
		}
		if e.ValueFrom == nil {
			continue
		}
		if e.Value != "" {
			errs = append(errs, field.Invalid(at.Child("valueFrom"), "", "may not stand beside value; remove one of them"))
		}
		errs = append(errs, validateEnvSource(e.ValueFrom, at.Child("valueFrom"))...)
	}
	return errs
}

func validateEnvSource(source *corev1.EnvVarSource, path *field.Path) field.ErrorList {
	errs := validateOneOf(path, alternatives(source)...)
	if ref := source.FieldRef; ref != nil {
		errs = append(errs, validateFieldRef(ref, envFieldPaths, path.Child("fieldRef"))...)
	}
	if ref := source.ResourceFieldRef; ref != nil {
		errs = append(errs, validateResourceFieldRef(ref, path.Child("resourceFieldRef"))...)
	}
	if ref := source.ConfigMapKeyRef; ref != nil {
		errs = append(errs, validateKeyRef(ref.Name, ref.Key, "ConfigMap", path.Child("configMapKeyRef"))...)
	}
	if ref := source.SecretKeyRef; ref != nil {
		errs = append(errs, validateKeyRef(ref.Name, ref.Key, "Secret", path.Child("secretKeyRef"))...)
	}
	if ref := source.FileKeyRef; ref != nil {
		errs = append(errs, validateFileKeyRef(ref, path.Child("fileKeyRef"))...)
	}
	return errs
}

func validateKeyRef(name, key, kind string, path *field.Path) field.ErrorList {
	errs := validateObjectName(name, path.Child("name"), "name the "+kind)
	if key == "" {
		return append(errs, field.Required(path.Child("key"), "name a key of the "+kind))
	}
	return append(errs, invalid(path.Child("key"), key, validation.IsConfigMapKey(key))...)
}

func validateFileKeyRef(ref *corev1.FileKeySelector, path *field.Path) field.ErrorList {
	errs := requireText(ref.VolumeName, path.Child("volumeName"), "name the volume that holds the file")
	if ref.VolumeName != "" {
		errs = append(errs, invalid(path.Child("volumeName"), ref.VolumeName, validation.IsDNS1123Label(ref.VolumeName))...)
	}
	errs = append(errs, requireText(ref.Path, path.Child("path"), "say where in the volume the file is")...)
	errs = append(errs, validateDescendingPath(ref.Path, path.Child("path"))...)
	if ref.Key == "" {
		return append(errs, field.Required(path.Child("key"), "name a variable of the file"))
	}
	return append(errs, invalid(path.Child("key"), ref.Key, validation.IsRelaxedEnvVarName(ref.Key))...)
}

func validateEnvFrom(sources []corev1.EnvFromSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range sources {
		source, at := &sources[i], path.Index(i)
		if source.Prefix != "" {
			errs = append(errs, invalid(at.Child("prefix"), source.Prefix, validation.IsRelaxedEnvVarName(source.Prefix))...)
		}
		errs = append(errs, validateOneOf(at, alternatives(source)...)...)
		if ref := source.ConfigMapRef; ref != nil {
			errs = append(errs, validateObjectName(ref.Name, at.Child("configMapRef", "name"), "name the ConfigMap")...)
		}
		if ref := source.SecretRef; ref != nil {
			errs = append(errs, validateObjectName(ref.Name, at.Child("secretRef", "name"), "name the Secret")...)
		}
	}
	return errs
}

// The fields of a Pod that variables and files may show, beside single labels
// and annotations.
var (
	envFieldPaths = []string{
		"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs", "spec.host",
	}
	fileFieldPaths = []string{"metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid"}
)

func validateFieldRef(ref *corev1.ObjectFieldSelector, supported []string, path *field.Path) field.ErrorList {
	at := path.Child("fieldPath")
	if ref.FieldPath == "" {
		return field.ErrorList{field.Required(at, "name a field of the Pod, for example metadata.name")}
	}
	if ref.APIVersion != "" && ref.APIVersion != "v1" {
		return field.ErrorList{field.Invalid(path.Child("apiVersion"), ref.APIVersion, "must be v1; correct or remove it")}
	}
	if errs, subscripted := validateSubscript(ref.FieldPath, at); subscripted {
		return errs
	}
	return validateValue(ref.FieldPath, at, supported...)
}

// validateSubscript checks a path that names one label or annotation, and says
// whether it is such a path at all.
func validateSubscript(path string, at *field.Path) (errs field.ErrorList, subscripted bool) {
	parent, key, found := strings.Cut(path, "['")
	key, closed := strings.CutSuffix(key, "']")
	if !found || !closed {
		return nil, false
	}
	switch parent {
	case "metadata.annotations":
		key = strings.ToLower(key)
	case "metadata.labels":
	default:
		return field.ErrorList{field.Invalid(at, path, "only metadata.labels and metadata.annotations have keys; correct it")}, true
	}
	return invalid(at, path, validation.IsQualifiedName(key)), true
}

var containerResources = sets.New(
	"limits.cpu", "limits.memory", "limits.ephemeral-storage",
	"requests.cpu", "requests.memory", "requests.ephemeral-storage",
)

func validateResourceFieldRef(ref *corev1.ResourceFieldSelector, path *field.Path) field.ErrorList {
	at := path.Child("resource")
	if ref.Resource == "" {
		return field.ErrorList{field.Required(at, "name a resource, for example limits.cpu")}
	}
	var errs field.ErrorList
	huge := strings.HasPrefix(ref.Resource, "limits.hugepages-") || strings.HasPrefix(ref.Resource, "requests.hugepages-")
	if !containerResources.Has(ref.Resource) && !huge {
		errs = append(errs, field.NotSupported(at, ref.Resource, sets.List(containerResources)))
	}
	if !divides(ref.Resource, ref.Divisor) {
		errs = append(errs, field.Invalid(path.Child("divisor"), ref.Divisor.String(), "must be 1 or, for cpu, 1m, or for all others 1 with a unit such as 1k or 1Mi; correct or remove it"))
	}
	return errs
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
