package validation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
)

// validateKeys checks the files that the keys of a Secret or ConfigMap become.
func validateKeys(items []corev1.KeyToPath, path place) {
	for i := range items {
		item, at := &items[i], path.Index(i)
		requireText(item.Key, at.Child("key"), "name a key")
		validateFilePath(item.Path, at.Child("path"))
		validateMode(item.Mode, at.Child("mode"))
	}
}

func validateDownwardFiles(items []corev1.DownwardAPIVolumeFile, path place) {
	for i := range items {
		item, at := &items[i], path.Index(i)
		validateFilePath(item.Path, at.Child("path"))
		validateOneOf(at, alternatives(item)...)
		if item.FieldRef != nil {
			validateFieldRef(item.FieldRef, fileFieldPaths, at.Child("fieldRef"))
		}
		if ref := item.ResourceFieldRef; ref != nil {
			requireText(ref.ContainerName, at.Child("resourceFieldRef", "containerName"), "name the container")
			validateResourceFieldRef(ref, at.Child("resourceFieldRef"))
		}
		validateMode(item.Mode, at.Child("mode"))
	}
}

// validateProjected checks a volume that joins several sources. Their files
// share one directory, so that no two may have one path.
func validateProjected(v *corev1.ProjectedVolumeSource, path place) {
	validateMode(v.DefaultMode, path.Child("defaultMode"))
	taken := sets.New[string]()
	for i := range v.Sources {
		source, at := &v.Sources[i], path.Child("sources").Index(i)
		validateProjection(source, at)
		for _, file := range projectedPaths(source) {
			if file != "" && taken.Has(file) {
				at.invalid(file, "another source has a file of this path; change one of them")
			}
			taken.Insert(file)
		}
	}
}

func validateProjection(s *corev1.VolumeProjection, path place) {
	if *s == (corev1.VolumeProjection{}) {
		return // the API server takes one without source
	}
	validateOneOf(path, alternatives(s)...)
	if v := s.Secret; v != nil {
		requireText(v.Name, path.Child("secret", "name"), "name the Secret")
		validateKeys(v.Items, path.Child("secret", "items"))
	}
	if v := s.ConfigMap; v != nil {
		requireText(v.Name, path.Child("configMap", "name"), "name the ConfigMap")
		validateKeys(v.Items, path.Child("configMap", "items"))
	}
	if v := s.DownwardAPI; v != nil {
		validateDownwardFiles(v.Items, path.Child("downwardAPI", "items"))
	}
	ifSet(s.ServiceAccountToken, path.Child("serviceAccountToken"), validateToken)
	ifSet(s.ClusterTrustBundle, path.Child("clusterTrustBundle"), validateTrustBundle)
	ifSet(s.PodCertificate, path.Child("podCertificate"), validateCertificate)
}

func validateCertificate(v *corev1.PodCertificateProjection, path place) {
	validateSignerName(v.SignerName, path.Child("signerName"))
	requireText(v.KeyType, path.Child("keyType"), "name the type of key, for example ED25519")
	validateValue(&v.KeyType, path.Child("keyType"), "RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")
	most := int32(maxCertificateSeconds)
	if strings.HasPrefix(v.SignerName, "kubernetes.io/") {
		most = maxClusterCertificateSeconds
	}
	if life := v.MaxExpirationSeconds; life != nil && (*life < minCertificateSeconds || *life > most) {
		path.Child("maxExpirationSeconds").invalid(*life, fmt.Sprintf("must be from 3600 (one hour) to %d for this signer; correct or remove it", most))
	}
	for _, key := range slices.Sorted(maps.Keys(v.UserAnnotations)) {
		for _, problem := range validation.IsDomainPrefixedKey(path.Path, strings.ToLower(key)) {
			path.Child("userAnnotations").Key(key).invalid(key, "must be a domain and a name, such as example.com/key: "+problem.Detail+"; correct it")
		}
	}
	if v.CredentialBundlePath+v.KeyPath+v.CertificateChainPath == "" {
		path.Child("credentialBundlePath").required("say where in the volume the file goes, here, in keyPath or in certificateChainPath")
		return
	}
	for _, file := range []struct{ member, path string }{
		{"credentialBundlePath", v.CredentialBundlePath}, {"keyPath", v.KeyPath}, {"certificateChainPath", v.CertificateChainPath},
	} {
		if file.path != "" {
			validateFilePath(file.path, path.Child(file.member))
		}
	}
}

// The bounds of the lifetime of a Pod's certificate, in seconds: an hour, 91 days, and a day
// for the signers kubernetes.io/*.
const (
	minCertificateSeconds        = 60 * 60
	maxCertificateSeconds        = 91 * 24 * 60 * 60
	maxClusterCertificateSeconds = 24 * 60 * 60
)

// The bounds of the lifetime of a token, in seconds: ten minutes, and 2^32, as in the API
// server.
const (
	minTokenSeconds = 10 * 60
	maxTokenSeconds = 1 << 32
)

func validateToken(v *corev1.ServiceAccountTokenProjection, path place) {
	validateFilePath(v.Path, path.Child("path"))
	if life := v.ExpirationSeconds; life != nil && (*life < minTokenSeconds || *life > maxTokenSeconds) {
		path.Child("expirationSeconds").invalid(*life, "must be from 600 (ten minutes) to 4294967296; correct or remove it")
	}
}

func validateTrustBundle(v *corev1.ClusterTrustBundleProjection, path place) {
	validateFilePath(v.Path, path.Child("path"))
	validateOneOf(path, member{"name", v.Name != nil}, member{"signerName", v.SignerName != nil})
	if v.Name != nil {
		requireText(*v.Name, path.Child("name"), "name the ClusterTrustBundle")
		colon := strings.LastIndex(*v.Name, ":") // in front of it is the name of a signer
		if *v.Name != "" && (colon == 0 || len(validation.IsDNS1123Subdomain((*v.Name)[colon+1:])) > 0) {
			path.Child("name").invalid(*v.Name, "must be a name such as bundle or example.com:signer:bundle; correct it")
		}
		if v.LabelSelector != nil {
			path.Child("labelSelector").invalid("", "must not be set together with name; remove one of them")
		}
	}
	if v.SignerName != nil {
		validateSignerName(*v.SignerName, path.Child("signerName"))
		validateTerms(v.LabelSelector, path.Child("labelSelector"))
	}
}

// projectedPaths are the files of one source of a projected volume. The file of a token is not
// compared, because the API server does not compare it either.
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
