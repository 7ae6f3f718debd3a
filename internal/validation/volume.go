package validation

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxFileMode holds the permission bits of a file in a volume.
const maxFileMode = 0o777

func validateVolumes(volumes []corev1.Volume, path *field.Path) field.ErrorList {
	names := sets.New[string]()
	var errs field.ErrorList
	for i := range volumes {
		v, at := &volumes[i], path.Index(i)
		errs = append(errs, validateUniqueName(v.Name, names, at.Child("name"))...)
		if sources := sourcesOf(&v.VolumeSource); v.Name != "" || hasSource(sources) {
			errs = append(errs, validateOneOf(at, sources...)...)
		}
		errs = append(errs, validateSource(&v.VolumeSource, at)...)
		errs = append(errs, validateRequiredText(&v.VolumeSource, at)...)
	}
	return errs
}

// sourcesOf lists the sources that we know, in the order of their popularity.
func sourcesOf(s *corev1.VolumeSource) []member {
	return []member{
		{"emptyDir", s.EmptyDir != nil}, {"configMap", s.ConfigMap != nil}, {"secret", s.Secret != nil},
		{"projected", s.Projected != nil}, {"downwardAPI", s.DownwardAPI != nil}, {"hostPath", s.HostPath != nil},
		{"persistentVolumeClaim", s.PersistentVolumeClaim != nil}, {"ephemeral", s.Ephemeral != nil},
		{"csi", s.CSI != nil}, {"image", s.Image != nil}, {"nfs", s.NFS != nil}, {"iscsi", s.ISCSI != nil},
		{"fc", s.FC != nil}, {"rbd", s.RBD != nil}, {"cephfs", s.CephFS != nil}, {"glusterfs", s.Glusterfs != nil},
		{"cinder", s.Cinder != nil}, {"flocker", s.Flocker != nil}, {"flexVolume", s.FlexVolume != nil},
		{"gitRepo", s.GitRepo != nil}, {"gcePersistentDisk", s.GCEPersistentDisk != nil},
		{"awsElasticBlockStore", s.AWSElasticBlockStore != nil}, {"azureFile", s.AzureFile != nil},
		{"azureDisk", s.AzureDisk != nil}, {"vsphereVolume", s.VsphereVolume != nil},
		{"photonPersistentDisk", s.PhotonPersistentDisk != nil}, {"quobyte", s.Quobyte != nil},
		{"portworxVolume", s.PortworxVolume != nil}, {"scaleIO", s.ScaleIO != nil}, {"storageos", s.StorageOS != nil},
	}
}

func hasSource(sources []member) bool {
	for _, s := range sources {
		if s.set {
			return true
		}
	}
	return false
}

// validateSource checks the sources that have rules beyond required members.
func validateSource(s *corev1.VolumeSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if v := s.EmptyDir; v != nil && v.SizeLimit != nil && v.SizeLimit.Sign() < 0 {
		errs = append(errs, field.Invalid(path.Child("emptyDir", "sizeLimit"), v.SizeLimit.String(), "must be 0 or more; correct or remove it"))
	}
	if v := s.HostPath; v != nil {
		errs = append(errs, validateNoBacksteps(v.Path, path.Child("hostPath", "path"))...)
		if v.Type != nil {
			errs = append(errs, validateValue(*v.Type, path.Child("hostPath", "type"), hostPathTypes...)...)
		}
	}
	if v := s.Secret; v != nil {
		errs = append(errs, validateFiles(v.Items, v.DefaultMode, path.Child("secret"))...)
	}
	if v := s.ConfigMap; v != nil {
		errs = append(errs, validateFiles(v.Items, v.DefaultMode, path.Child("configMap"))...)
	}
	if v := s.DownwardAPI; v != nil {
		errs = append(errs, validateMode(v.DefaultMode, path.Child("downwardAPI", "defaultMode"))...)
		errs = append(errs, validateDownwardFiles(v.Items, path.Child("downwardAPI", "items"))...)
	}
	if v := s.Projected; v != nil {
		errs = append(errs, validateProjected(v, path.Child("projected"))...)
	}
	if v := s.NFS; v != nil && v.Path != "" && !strings.HasPrefix(v.Path, "/") {
		errs = append(errs, field.Invalid(path.Child("nfs", "path"), v.Path, "must be an absolute path; begin it with '/'"))
	}
	if v := s.CSI; v != nil {
		errs = append(errs, validateCSI(v, path.Child("csi"))...)
	}
	if v := s.GitRepo; v != nil {
		errs = append(errs, validateDescendingPath(v.Directory, path.Child("gitRepo", "directory"))...)
	}
	if v := s.Image; v != nil {
		errs = append(errs, validateValue(v.PullPolicy, path.Child("image", "pullPolicy"), pullPolicies...)...)
	}
	if v := s.ISCSI; v != nil {
		errs = append(errs, validateISCSI(v, path.Child("iscsi"))...)
	}
	if v := s.FC; v != nil {
		errs = append(errs, validateFC(v, path.Child("fc"))...)
	}
	if v := s.AzureDisk; v != nil {
		errs = append(errs, validateAzureDisk(v, path.Child("azureDisk"))...)
	}
	if v := s.Ephemeral; v != nil {
		errs = append(errs, validateClaimTemplate(v.VolumeClaimTemplate, path.Child("ephemeral", "volumeClaimTemplate"))...)
	}
	return append(errs, validateLegacySource(s, path)...)
}

var hostPathTypes = []corev1.HostPathType{
	corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory, corev1.HostPathFileOrCreate, corev1.HostPathFile,
	corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev,
}

func validateCSI(v *corev1.CSIVolumeSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if v.Driver != "" {
		errs = invalid(path.Child("driver"), v.Driver, validation.IsDNS1123Subdomain(strings.ToLower(v.Driver)))
		if len(v.Driver) > maxNameLength {
			errs = append(errs, field.TooLong(path.Child("driver"), v.Driver, maxNameLength))
		}
	}
	if ref := v.NodePublishSecretRef; ref != nil {
		errs = append(errs, validateObjectName(ref.Name, path.Child("nodePublishSecretRef", "name"), "name the Secret")...)
	}
	return errs
}

func volumesByName(volumes []corev1.Volume) map[string]*corev1.Volume {
	byName := make(map[string]*corev1.Volume, len(volumes))
	for i := range volumes {
		byName[volumes[i].Name] = &volumes[i]
	}
	return byName
}
