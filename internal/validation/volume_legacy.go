package validation

import (
	"maps"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateLegacySource checks the sources of which drivers have left Kubernetes.
// API servers go on checking what they hold.
func validateLegacySource(s *corev1.VolumeSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if v := s.Quobyte; v != nil {
		errs = append(errs, validateQuobyte(v, path.Child("quobyte"))...)
	}
	if v := s.StorageOS; v != nil {
		errs = append(errs, validateStorageOS(v, path.Child("storageos"))...)
	}
	if v := s.Flocker; v != nil {
		errs = append(errs, validateFlocker(v, path.Child("flocker"))...)
	}
	if v := s.GCEPersistentDisk; v != nil {
		errs = append(errs, validateByte(v.Partition, path.Child("gcePersistentDisk", "partition"))...)
	}
	if v := s.AWSElasticBlockStore; v != nil {
		errs = append(errs, validateByte(v.Partition, path.Child("awsElasticBlockStore", "partition"))...)
	}
	if v := s.Cinder; v != nil {
		errs = append(errs, validateSecretReference(v.SecretRef, path.Child("cinder", "secretRef"))...)
	}
	if v := s.FlexVolume; v != nil {
		errs = append(errs, validateFlexOptions(v.Options, path.Child("flexVolume", "options"))...)
	}
	return errs
}

// maxTenant is the length of a Quobyte tenant's UUID, in the form that is longest.
const maxTenant = 64

func validateQuobyte(v *corev1.QuobyteVolumeSource, path *field.Path) field.ErrorList {
	errs := requireText(v.Registry, path.Child("registry"), "name the registries as host:port, separated by commas")
	if v.Registry != "" {
		for registry := range strings.SplitSeq(v.Registry, ",") {
			if _, _, err := net.SplitHostPort(registry); err != nil {
				errs = append(errs, field.Invalid(path.Child("registry"), v.Registry, "must be host:port, or several separated by commas; correct it"))
				break
			}
		}
	}
	if len(v.Tenant) > maxTenant {
		errs = append(errs, field.Invalid(path.Child("tenant"), v.Tenant, "must be a UUID of at most 64 characters; correct or remove it"))
	}
	return append(errs, requireText(v.Volume, path.Child("volume"), "name the volume")...)
}

func validateStorageOS(v *corev1.StorageOSVolumeSource, path *field.Path) field.ErrorList {
	errs := requireText(v.VolumeName, path.Child("volumeName"), "name the volume")
	if v.VolumeName != "" {
		errs = append(errs, invalid(path.Child("volumeName"), v.VolumeName, validation.IsDNS1123Label(v.VolumeName))...)
	}
	if v.VolumeNamespace != "" {
		errs = append(errs, invalid(path.Child("volumeNamespace"), v.VolumeNamespace, validation.IsDNS1123Label(v.VolumeNamespace))...)
	}
	return append(errs, validateSecretReference(v.SecretRef, path.Child("secretRef"))...)
}

func validateFlocker(v *corev1.FlockerVolumeSource, path *field.Path) field.ErrorList {
	errs := validateOneOf(path, member{"datasetName", v.DatasetName != ""}, member{"datasetUUID", v.DatasetUUID != ""})
	if strings.Contains(v.DatasetName, "/") {
		errs = append(errs, field.Invalid(path.Child("datasetName"), v.DatasetName, "must not contain '/'; correct it"))
	}
	return errs
}

func validateSecretReference(ref *corev1.LocalObjectReference, path *field.Path) field.ErrorList {
	if ref == nil {
		return nil
	}
	return requireText(ref.Name, path.Child("name"), "name the Secret")
}

// validateFlexOptions refuses options that are the kubelet's.
func validateFlexOptions(options map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(options)) {
		domain, _, _ := strings.Cut(key, "/")
		if domain = "." + strings.ToLower(domain); strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io") {
			errs = append(errs, field.Invalid(path.Key(key), key, "options of kubernetes.io and k8s.io are the kubelet's; remove it"))
		}
	}
	return errs
}
