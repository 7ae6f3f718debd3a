package validation

import (
	"maps"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// validateLegacySource checks the sources whose drivers have left Kubernetes. API servers
// still check them.
func validateLegacySource(s *corev1.VolumeSource, path place) {
	ifSet(s.Quobyte, path.Child("quobyte"), validateQuobyte)
	ifSet(s.StorageOS, path.Child("storageos"), validateStorageOS)
	ifSet(s.Flocker, path.Child("flocker"), validateFlocker)
	if v := s.GCEPersistentDisk; v != nil {
		validateByte(v.Partition, path.Child("gcePersistentDisk", "partition"))
	}
	if v := s.AWSElasticBlockStore; v != nil {
		validateByte(v.Partition, path.Child("awsElasticBlockStore", "partition"))
	}
	if v := s.Cinder; v != nil {
		validateSecretReference(v.SecretRef, path.Child("cinder", "secretRef"))
	}
	if v := s.FlexVolume; v != nil {
		validateFlexOptions(v.Options, path.Child("flexVolume", "options"))
	}
}

// maxTenant is the length of a Quobyte tenant's UUID, in the form that is longest.
const maxTenant = 64

func validateQuobyte(v *corev1.QuobyteVolumeSource, path place) {
	requireText(v.Registry, path.Child("registry"), "name the registries as host:port, separated by commas")
	if v.Registry != "" {
		for registry := range strings.SplitSeq(v.Registry, ",") {
			if _, _, err := net.SplitHostPort(registry); err != nil {
				path.Child("registry").invalid(v.Registry, "must be host:port, or several separated by commas; correct it")
				break
			}
		}
	}
	if len(v.Tenant) > maxTenant {
		path.Child("tenant").invalid(v.Tenant, "must be a UUID of at most 64 characters; correct or remove it")
	}
	requireText(v.Volume, path.Child("volume"), "name the volume")
}

func validateStorageOS(v *corev1.StorageOSVolumeSource, path place) {
	requireText(v.VolumeName, path.Child("volumeName"), "name the volume", validation.IsDNS1123Label)
	validateText(&v.VolumeNamespace, path.Child("volumeNamespace"), validation.IsDNS1123Label)
	validateSecretReference(v.SecretRef, path.Child("secretRef"))
}

func validateFlocker(v *corev1.FlockerVolumeSource, path place) {
	validateOneOf(path, member{"datasetName", v.DatasetName != ""}, member{"datasetUUID", v.DatasetUUID != ""})
	if strings.Contains(v.DatasetName, "/") {
		path.Child("datasetName").invalid(v.DatasetName, "must not contain '/'; correct it")
	}
}

func validateSecretReference(ref *corev1.LocalObjectReference, path place) {
	if ref != nil {
		requireText(ref.Name, path.Child("name"), "name the Secret")
	}
}

// validateFlexOptions refuses options that are the kubelet's.
func validateFlexOptions(options map[string]string, path place) {
	for _, key := range slices.Sorted(maps.Keys(options)) {
		domain, _, _ := strings.Cut(key, "/")
		if domain = "." + strings.ToLower(domain); strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io") {
			path.Key(key).invalid(key, "options of kubernetes.io and k8s.io are the kubelet's; remove it")
		}
	}
}
