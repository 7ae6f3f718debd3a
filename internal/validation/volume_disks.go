package validation

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
)

// validateClaimTemplate checks what every claim needs.
func validateClaimTemplate(t *corev1.PersistentVolumeClaimTemplate, path place) {
	if t == nil {
		path.required("describe the claim that is made for each Pod")
		return
	}
	path.add(sorted(metav1validation.ValidateLabels(t.Labels, path.Path.Child("metadata", "labels")))...)
	path.add(sorted(apivalidation.ValidateAnnotations(t.Annotations, path.Path.Child("metadata", "annotations")))...)
	validateTemplateMetadata(&t.ObjectMeta, path.Child("metadata"))
	spec := path.Child("spec")
	validateAccessModes(t.Spec.AccessModes, spec.Child("accessModes"))
	at := spec.Child("resources", "requests").Key(string(corev1.ResourceStorage))
	if storage, ok := t.Spec.Resources.Requests[corev1.ResourceStorage]; !ok {
		at.required("say how large the volume is, for example 1Gi")
	} else if storage.Sign() <= 0 {
		at.invalid(storage.String(), "must be greater than 0; correct it")
	}
	validateText(t.Spec.StorageClassName, spec.Child("storageClassName"), validation.IsDNS1123Subdomain)
	validateValue(t.Spec.VolumeMode, spec.Child("volumeMode"), corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock)
	validateClaimOptions(&t.Spec, spec)
}

func validateAccessModes(modes []corev1.PersistentVolumeAccessMode, path place) {
	if len(modes) == 0 {
		path.required("say how the volume is used, for example ReadWriteOnce")
		return
	}
	for i := range modes {
		validateValue(&modes[i], path.Index(i), corev1.ReadWriteOnce, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOncePod)
	}
	another := func(mode corev1.PersistentVolumeAccessMode) bool { return mode != corev1.ReadWriteOncePod }
	if slices.Contains(modes, corev1.ReadWriteOncePod) && slices.ContainsFunc(modes, another) {
		path.forbidden("ReadWriteOncePod must not be set together with another mode; remove one of them")
	}
}

func validateISCSI(v *corev1.ISCSIVolumeSource, path place) {
	validateByte(v.Lun, path.Child("lun"))
	if v.IQN != "" {
		validateInitiator(v.IQN, path.Child("iqn"))
	}
	if v.InitiatorName != nil {
		validateInitiator(*v.InitiatorName, path.Child("initiatorName"))
	}
	if (v.DiscoveryCHAPAuth || v.SessionCHAPAuth) && v.SecretRef == nil {
		path.Child("secretRef").required("CHAP needs a Secret; name it or switch CHAP off")
	}
}

// initiatorFormat has the three forms of an iSCSI name.
var initiatorFormat = regexp.MustCompile(`^(?:iqn.*)?iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$|^eui.[[:alnum:]]{16}$|^naa.[[:alnum:]]{32}$`)

func validateInitiator(name string, path place) {
	if !initiatorFormat.MatchString(name) {
		path.invalid(name, "must be an iSCSI name such as iqn.2001-04.com.example:disk, eui. with 16 digits or naa. with 32; correct it")
	}
}

func validateFC(v *corev1.FCVolumeSource, path place) {
	validateOneOf(path, member{"targetWWNs", len(v.TargetWWNs) > 0}, member{"wwids", len(v.WWIDs) > 0})
	switch {
	case len(v.TargetWWNs) > 0 && v.Lun == nil:
		path.Child("lun").required("targetWWNs need the number of a unit; set it")
	case len(v.TargetWWNs) > 0:
		validateByte(*v.Lun, path.Child("lun"))
	}
}

func validateAzureDisk(v *corev1.AzureDiskVolumeSource, path place) {
	validateValue(v.CachingMode, path.Child("cachingMode"), corev1.AzureDataDiskCachingNone, corev1.AzureDataDiskCachingReadOnly, corev1.AzureDataDiskCachingReadWrite)
	validateValue(v.Kind, path.Child("kind"), corev1.AzureSharedBlobDisk, corev1.AzureDedicatedBlobDisk, corev1.AzureManagedDisk)
	prefix := "https://" // also the prefix for the default kind
	if v.Kind != nil && *v.Kind == corev1.AzureManagedDisk {
		prefix = "/subscriptions/"
	}
	if v.DataDiskURI != "" && !strings.HasPrefix(v.DataDiskURI, prefix) {
		path.Child("diskURI").invalid(v.DataDiskURI, "must begin with "+prefix+" for this kind of disk; correct one of them")
	}
}

// validateSignerName checks the name of a signer of certificates.
func validateSignerName(name string, path place) {
	domain, signer, _ := strings.Cut(name, "/")
	bad := len(validation.IsFullyQualifiedDomainName(path.Path, domain)) > 0 || strings.HasSuffix(domain, ".") || len(validation.IsDNS1123Subdomain(signer)) > 0
	requireText(name, path, "name the signer, for example example.com/signer")
	if name != "" && bad {
		path.invalid(name, "must be a domain with a dot and a name, such as example.com/signer; correct it")
	}
}
