package validation

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateClaimTemplate checks what every claim needs.
func validateClaimTemplate(t *corev1.PersistentVolumeClaimTemplate, path *field.Path) field.ErrorList {
	if t == nil {
		return field.ErrorList{field.Required(path, "describe the claim that is made for each Pod")}
	}
	errs := sorted(metav1validation.ValidateLabels(t.Labels, path.Child("metadata", "labels")))
	errs = append(errs, sorted(apivalidation.ValidateAnnotations(t.Annotations, path.Child("metadata", "annotations")))...)
	errs = append(errs, validateTemplateMetadata(&t.ObjectMeta, path.Child("metadata"))...)
	spec := path.Child("spec")
	errs = append(errs, validateAccessModes(t.Spec.AccessModes, spec.Child("accessModes"))...)
	at := spec.Child("resources", "requests").Key(string(corev1.ResourceStorage))
	if storage, ok := t.Spec.Resources.Requests[corev1.ResourceStorage]; !ok {
		errs = append(errs, field.Required(at, "say how large the volume is, for example 1Gi"))
	} else if storage.Sign() <= 0 {
		errs = append(errs, field.Invalid(at, storage.String(), "must be greater than 0; correct it"))
	}
	if class := t.Spec.StorageClassName; class != nil && *class != "" {
		errs = append(errs, invalid(spec.Child("storageClassName"), *class, validation.IsDNS1123Subdomain(*class))...)
	}
	if mode := t.Spec.VolumeMode; mode != nil {
		errs = append(errs, validateValue(*mode, spec.Child("volumeMode"), corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock)...)
	}
	return append(errs, validateClaimOptions(&t.Spec, spec)...)
}

func validateAccessModes(modes []corev1.PersistentVolumeAccessMode, path *field.Path) field.ErrorList {
	if len(modes) == 0 {
		return field.ErrorList{field.Required(path, "say how the volume is used, for example ReadWriteOnce")}
	}
	var errs field.ErrorList
	for i, mode := range modes {
		errs = append(errs, validateValue(mode, path.Index(i), corev1.ReadWriteOnce, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOncePod)...)
	}
	if len(modes) > 1 && slices.Contains(modes, corev1.ReadWriteOncePod) {
		errs = append(errs, field.Forbidden(path, "ReadWriteOncePod may not stand beside another mode; remove one of them"))
	}
	return errs
}

func validateISCSI(v *corev1.ISCSIVolumeSource, path *field.Path) field.ErrorList {
	errs := validateByte(v.Lun, path.Child("lun"))
	if v.IQN != "" {
		errs = append(errs, validateInitiator(v.IQN, path.Child("iqn"))...)
	}
	if v.InitiatorName != nil {
		errs = append(errs, validateInitiator(*v.InitiatorName, path.Child("initiatorName"))...)
	}
	if (v.DiscoveryCHAPAuth || v.SessionCHAPAuth) && v.SecretRef == nil {
		errs = append(errs, field.Required(path.Child("secretRef"), "CHAP needs a Secret; name it or switch CHAP off"))
	}
	return errs
}

// initiatorFormat has the three forms of an iSCSI name.
var initiatorFormat = regexp.MustCompile(`^(?:iqn.*)?iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$|^eui.[[:alnum:]]{16}$|^naa.[[:alnum:]]{32}$`)

func validateInitiator(name string, path *field.Path) field.ErrorList {
	if initiatorFormat.MatchString(name) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, name, "must be an iSCSI name such as iqn.2001-04.com.example:disk, eui. with 16 digits or naa. with 32; correct it")}
}

func validateFC(v *corev1.FCVolumeSource, path *field.Path) field.ErrorList {
	errs := validateOneOf(path, member{"targetWWNs", len(v.TargetWWNs) > 0}, member{"wwids", len(v.WWIDs) > 0})
	switch {
	case len(v.TargetWWNs) > 0 && v.Lun == nil:
		errs = append(errs, field.Required(path.Child("lun"), "targetWWNs need the number of a unit; set it"))
	case len(v.TargetWWNs) > 0:
		errs = append(errs, validateByte(*v.Lun, path.Child("lun"))...)
	}
	return errs
}

func validateAzureDisk(v *corev1.AzureDiskVolumeSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if v.CachingMode != nil {
		errs = append(errs, validateValue(*v.CachingMode, path.Child("cachingMode"), corev1.AzureDataDiskCachingNone, corev1.AzureDataDiskCachingReadOnly, corev1.AzureDataDiskCachingReadWrite)...)
	}
	prefix := "https://" // of the kind that is the default, too
	if v.Kind != nil {
		errs = append(errs, validateValue(*v.Kind, path.Child("kind"), corev1.AzureSharedBlobDisk, corev1.AzureDedicatedBlobDisk, corev1.AzureManagedDisk)...)
		if *v.Kind == corev1.AzureManagedDisk {
			prefix = "/subscriptions/"
		}
	}
	if v.DataDiskURI != "" && !strings.HasPrefix(v.DataDiskURI, prefix) {
		errs = append(errs, field.Invalid(path.Child("diskURI"), v.DataDiskURI, "must begin with "+prefix+" for this kind of disk; correct one of them"))
	}
	return errs
}

// validateSignerName checks the name of who signs certificates.
func validateSignerName(name string, path *field.Path) field.ErrorList {
	domain, signer, found := strings.Cut(name, "/")
	bad := len(validation.IsDNS1123Subdomain(domain)) > 0 || !strings.Contains(domain, ".") || len(validation.IsDNS1123Subdomain(signer)) > 0
	for label := range strings.SplitSeq(domain, ".") {
		bad = bad || len(validation.IsDNS1123Label(label)) > 0
	}
	switch {
	case name == "":
		return field.ErrorList{field.Required(path, "name the signer, for example example.com/signer")}
	case !found || bad:
		return field.ErrorList{field.Invalid(path, name, "must be a domain with a dot and a name, such as example.com/signer; correct it")}
	}
	return nil
}
