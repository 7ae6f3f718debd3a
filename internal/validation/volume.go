package validation

import (
	"maps"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateVolumes(volumes []corev1.Volume, path place) {
	names := sets.New[string]()
	for i := range volumes {
		v, at := &volumes[i], path.Index(i)
		validateUniqueName(v.Name, names, at.Child("name"))
		if v.Name != "" || v.VolumeSource != (corev1.VolumeSource{}) {
			validateOneOf(at, sourcesOf(&v.VolumeSource)...)
		}
		validateSource(&v.VolumeSource, at)
		validateNeeds(&v.VolumeSource, at)
	}
}

// sources are the sources of volumes that this build knows, the most used ones first, each
// with its required members.
var sources = []struct {
	name  string
	needs []string
}{
	{"emptyDir", nil},
	{"configMap", []string{"name"}},
	{"secret", []string{"secretName"}},
	{"projected", nil},
	{"downwardAPI", nil},
	{"hostPath", []string{"path"}},
	{"persistentVolumeClaim", []string{"claimName"}},
	{"ephemeral", nil},
	{"csi", []string{"driver"}},
	{"image", []string{"reference"}},
	{"nfs", []string{"server", "path"}},
	{"iscsi", []string{"targetPortal", "iqn"}},
	{"fc", nil},
	{"rbd", []string{"monitors", "image"}},
	{"cephfs", []string{"monitors"}},
	{"glusterfs", []string{"endpoints", "path"}},
	{"cinder", []string{"volumeID"}},
	{"flocker", nil},
	{"flexVolume", []string{"driver"}},
	{"gitRepo", []string{"repository"}},
	{"gcePersistentDisk", []string{"pdName"}},
	{"awsElasticBlockStore", []string{"volumeID"}},
	{"azureFile", []string{"secretName", "shareName"}},
	{"azureDisk", []string{"diskName", "diskURI"}},
	{"vsphereVolume", []string{"volumePath"}},
	{"photonPersistentDisk", []string{"pdID"}},
	{"quobyte", nil},
	{"portworxVolume", []string{"volumeID"}},
	{"scaleIO", []string{"gateway", "system", "volumeName"}},
	{"storageos", nil},
}

// sourcesOf lists the known sources, and whether a volume has each of them.
func sourcesOf(s *corev1.VolumeSource) []member {
	given := maps.Collect(fieldsOf(reflect.ValueOf(s).Elem()))
	list := make([]member, len(sources))
	for i, source := range sources {
		list[i] = member{source.name, !given[source.name].IsNil()}
	}
	return list
}

// validateNeeds refuses sources that lack a required member.
func validateNeeds(s *corev1.VolumeSource, path place) {
	given := maps.Collect(fieldsOf(reflect.ValueOf(s).Elem()))
	for _, source := range sources {
		if given[source.name].IsNil() {
			continue
		}
		members := maps.Collect(fieldsOf(given[source.name].Elem()))
		for _, name := range source.needs {
			if members[name].Len() == 0 { // a text or a list
				path.Child(source.name, name).required("the volume needs it; set it")
			}
		}
	}
}

// validateSource checks the sources that have rules beyond required members.
func validateSource(s *corev1.VolumeSource, path place) {
	if v := s.EmptyDir; v != nil && v.SizeLimit != nil && v.SizeLimit.Sign() < 0 {
		path.Child("emptyDir", "sizeLimit").invalid(v.SizeLimit.String(), "must be 0 or more; correct or remove it")
	}
	if v := s.HostPath; v != nil {
		validateNoBacksteps(v.Path, path.Child("hostPath", "path"))
		validateValue(v.Type, path.Child("hostPath", "type"), hostPathTypes...)
	}
	if v := s.Secret; v != nil {
		validateMode(v.DefaultMode, path.Child("secret", "defaultMode"))
		validateKeys(v.Items, path.Child("secret", "items"))
	}
	if v := s.ConfigMap; v != nil {
		validateMode(v.DefaultMode, path.Child("configMap", "defaultMode"))
		validateKeys(v.Items, path.Child("configMap", "items"))
	}
	if v := s.DownwardAPI; v != nil {
		validateMode(v.DefaultMode, path.Child("downwardAPI", "defaultMode"))
		validateDownwardFiles(v.Items, path.Child("downwardAPI", "items"))
	}
	ifSet(s.Projected, path.Child("projected"), validateProjected)
	if v := s.NFS; v != nil && v.Path != "" && !strings.HasPrefix(v.Path, "/") {
		path.Child("nfs", "path").invalid(v.Path, "must be an absolute path; begin it with '/'")
	}
	ifSet(s.CSI, path.Child("csi"), validateCSI)
	if v := s.GitRepo; v != nil {
		validateDescendingPath(v.Directory, path.Child("gitRepo", "directory"))
	}
	if v := s.Image; v != nil {
		validateValue(&v.PullPolicy, path.Child("image", "pullPolicy"), pullPolicies...)
	}
	ifSet(s.ISCSI, path.Child("iscsi"), validateISCSI)
	ifSet(s.FC, path.Child("fc"), validateFC)
	ifSet(s.AzureDisk, path.Child("azureDisk"), validateAzureDisk)
	if v := s.Ephemeral; v != nil {
		validateClaimTemplate(v.VolumeClaimTemplate, path.Child("ephemeral", "volumeClaimTemplate"))
	}
	validateLegacySource(s, path)
}

var hostPathTypes = []corev1.HostPathType{
	corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory, corev1.HostPathFileOrCreate, corev1.HostPathFile,
	corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev,
}

func validateCSI(v *corev1.CSIVolumeSource, path place) {
	if v.Driver != "" {
		path.Child("driver").invalidBy(v.Driver, validation.IsDNS1123Subdomain(strings.ToLower(v.Driver)))
		if len(v.Driver) > maxNameLength {
			path.add(field.TooLong(path.Path.Child("driver"), v.Driver, maxNameLength))
		}
	}
	if ref := v.NodePublishSecretRef; ref != nil {
		requireText(ref.Name, path.Child("nodePublishSecretRef", "name"), "name the Secret", validation.IsDNS1123Subdomain)
	}
}

func volumesByName(volumes []corev1.Volume) map[string]*corev1.Volume {
	byName := make(map[string]*corev1.Volume, len(volumes))
	for i := range volumes {
		byName[volumes[i].Name] = &volumes[i]
	}
	return byName
}
