package validation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateFiles checks the files that a Secret's or ConfigMap's keys become.
func validateFiles(items []corev1.KeyToPath, mode *int32, path *field.Path) field.ErrorList {
	errs := validateMode(mode, path.Child("defaultMode"))
	return append(errs, validateKeys(items, path.Child("items"))...)
}

func validateKeys(items []corev1.KeyToPath, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range items {
		item, at := &items[i], path.Index(i)
		errs = append(errs, requireText(item.Key, at.Child("key"), "name a key")...)
		errs = append(errs, validateFilePath(item.Path, at.Child("path"))...)
		errs = append(errs, validateMode(item.Mode, at.Child("mode"))...)
	}
	return errs
}

func validateDownwardFiles(items []corev1.DownwardAPIVolumeFile, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range items {
		item, at := &items[i], path.Index(i)
		errs = append(errs, validateFilePath(item.Path, at.Child("path"))...)
		errs = append(errs, validateOneOf(at, alternatives(item)...)...)
		if item.FieldRef != nil {
			errs = append(errs, validateFieldRef(item.FieldRef, fileFieldPaths, at.Child("fieldRef"))...)
		}
		if ref := item.ResourceFieldRef; ref != nil {
			errs = append(errs, requireText(ref.ContainerName, at.Child("resourceFieldRef", "containerName"), "name the container")...)
			errs = append(errs, validateResourceFieldRef(ref, at.Child("resourceFieldRef"))...)
		}
		errs = append(errs, validateMode(item.Mode, at.Child("mode"))...)
	}
	return errs
}

// validateProjected checks a volume that joins several sources. Their files
// share one directory, so that no two may have one path.
func validateProjected(v *corev1.ProjectedVolumeSource, path *field.Path) field.ErrorList {
	errs := validateMode(v.DefaultMode, path.Child("defaultMode"))
	taken := sets.New[string]()
	for i := range v.Sources {
		source, at := &v.Sources[i], path.Child("sources").Index(i)
		errs = append(errs, validateProjection(source, at)...)
		for _, file := range projectedPaths(source) {
			if file != "" && taken.Has(file) {
				errs = append(errs, field.Invalid(at, file, "another source has a file of this path; change one of them"))
			}
			taken.Insert(file)
		}
	}
	return errs
}

func validateProjection(s *corev1.VolumeProjection, path *field.Path) field.ErrorList {
	errs := validateOneOf(path, alternatives(s)...)
	if len(errs) > 0 && errs[0].Type == field.ErrorTypeRequired {
		return nil // the API server takes one without source
	}
	if v := s.Secret; v != nil {
		errs = append(errs, requireText(v.Name, path.Child("secret", "name"), "name the Secret")...)
		errs = append(errs, validateKeys(v.Items, path.Child("secret", "items"))...)
	}
	if v := s.ConfigMap; v != nil {
		errs = append(errs, requireText(v.Name, path.Child("configMap", "name"), "name the ConfigMap")...)
		errs = append(errs, validateKeys(v.Items, path.Child("configMap", "items"))...)
	}
	if v := s.DownwardAPI; v != nil {
		errs = append(errs, validateDownwardFiles(v.Items, path.Child("downwardAPI", "items"))...)
	}
	if v := s.ServiceAccountToken; v != nil {
		errs = append(errs, validateToken(v, path.Child("serviceAccountToken"))...)
	}
	if v := s.ClusterTrustBundle; v != nil {
		errs = append(errs, validateTrustBundle(v, path.Child("clusterTrustBundle"))...)
	}
	if v := s.PodCertificate; v != nil {
		errs = append(errs, validateCertificate(v, path.Child("podCertificate"))...)
	}
	return errs
}

func validateCertificate(v *corev1.PodCertificateProjection, path *field.Path) field.ErrorList {
	errs := validateSignerName(v.SignerName, path.Child("signerName"))
	errs = append(errs, requireText(v.KeyType, path.Child("keyType"), "name the type of key, for example ED25519")...)
	errs = append(errs, validateValue(v.KeyType, path.Child("keyType"), "RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")...)
	most := int32(maxCertificateSeconds)
	if strings.HasPrefix(v.SignerName, "kubernetes.io/") {
		most = maxClusterCertificateSeconds
	}
	if life := v.MaxExpirationSeconds; life != nil && (*life < minCertificateSeconds || *life > most) {
		errs = append(errs, field.Invalid(path.Child("maxExpirationSeconds"), *life, fmt.Sprintf("must be from 3600 (one hour) to %d for this signer; correct or remove it", most)))
	}
	for _, key := range slices.Sorted(maps.Keys(v.UserAnnotations)) {
		for _, problem := range validation.IsDomainPrefixedKey(path.Child("userAnnotations").Key(key), strings.ToLower(key)) {
			errs = append(errs, field.Invalid(path.Child("userAnnotations").Key(key), key, "must be a domain and a name, such as example.com/key: "+problem.Detail+"; correct it"))
		}
	}
	if v.CredentialBundlePath+v.KeyPath+v.CertificateChainPath == "" {
		return append(errs, field.Required(path.Child("credentialBundlePath"), "say where in the volume the file goes, here, in keyPath or in certificateChainPath"))
	}
	for _, file := range []struct{ member, path string }{
		{"credentialBundlePath", v.CredentialBundlePath}, {"keyPath", v.KeyPath}, {"certificateChainPath", v.CertificateChainPath},
	} {
		if file.path != "" {
			errs = append(errs, validateFilePath(file.path, path.Child(file.member))...)
		}
	}
	return errs
}

// The bounds of the life of a Pod's certificate, in seconds: an hour, 91 days,
// and a day from a signer of the cluster's own.
const (
	minCertificateSeconds        = 60 * 60
	maxCertificateSeconds        = 91 * 24 * 60 * 60
	maxClusterCertificateSeconds = 24 * 60 * 60
)

// The bounds of a token's life, in seconds: ten minutes, and what fits 32 bits.
const (
	minTokenSeconds = 10 * 60
	maxTokenSeconds = 1 << 32
)

func validateToken(v *corev1.ServiceAccountTokenProjection, path *field.Path) field.ErrorList {
	errs := validateFilePath(v.Path, path.Child("path"))
	if life := v.ExpirationSeconds; life != nil && (*life < minTokenSeconds || *life > maxTokenSeconds) {
		errs = append(errs, field.Invalid(path.Child("expirationSeconds"), *life, "must be from 600 (ten minutes) to 4294967296; correct or remove it"))
	}
	return errs
}

func validateTrustBundle(v *corev1.ClusterTrustBundleProjection, path *field.Path) field.ErrorList {
	errs := validateFilePath(v.Path, path.Child("path"))
	errs = append(errs, validateOneOf(path, member{"name", v.Name != nil}, member{"signerName", v.SignerName != nil})...)
	if v.Name != nil {
		errs = append(errs, requireText(*v.Name, path.Child("name"), "name the ClusterTrustBundle")...)
		if *v.Name != "" && !strings.Contains(*v.Name, ":") { // one with a colon belongs to a signer
			errs = append(errs, invalid(path.Child("name"), *v.Name, validation.IsDNS1123Subdomain(*v.Name))...)
		}
		if v.LabelSelector != nil {
			errs = append(errs, field.Invalid(path.Child("labelSelector"), "", "may not stand beside name; remove one of them"))
		}
	}
	if v.SignerName != nil {
		errs = append(errs, validateSignerName(*v.SignerName, path.Child("signerName"))...)
		errs = append(errs, validateTerms(v.LabelSelector, path.Child("labelSelector"))...)
	}
	return errs
}

// projectedPaths are the files of one source of a projected volume. A token's is
// not compared, as the API server does not.
func projectedPaths(s *corev1.VolumeProjection) []string {
	var paths []string
	if s.Secret != nil {
		for _, item := range s.Secret.Items {
			paths = append(paths, item.Path)
		}
	}
	if s.ConfigMap != nil {
		for _, item := range s.ConfigMap.Items {
			paths = append(paths, item.Path)
		}
	}
	if s.DownwardAPI != nil {
		for _, item := range s.DownwardAPI.Items {
			paths = append(paths, item.Path)
		}
	}
	if s.ClusterTrustBundle != nil {
		paths = append(paths, s.ClusterTrustBundle.Path)
	}
	if v := s.PodCertificate; v != nil {
		paths = append(paths, v.CredentialBundlePath, v.KeyPath, v.CertificateChainPath)
	}
	return paths
}
