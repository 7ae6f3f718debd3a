package validation

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

func validateVolumeMounts(c *corev1.Container, volumes map[string]*corev1.Volume, path place) {
	paths := sets.New[string]()
	for i := range c.VolumeMounts {
		m, at := &c.VolumeMounts[i], path.Index(i)
		validateVolumeReference(m.Name, volumes, at.Child("name"))
		switch {
		case m.MountPath == "":
			at.Child("mountPath").required("say where the sidecar sees the volume")
		case paths.Has(m.MountPath):
			at.Child("mountPath").invalid(m.MountPath, "must be unique in the container; change one of the mounts")
		}
		paths.Insert(m.MountPath)
		validateDescendingPath(m.SubPath, at.Child("subPath"))
		if m.SubPath != "" && m.SubPathExpr != "" {
			at.Child("subPathExpr").invalid(m.SubPathExpr, "must not be set together with subPath; remove one of them")
		}
		validateDescendingPath(m.SubPathExpr, at.Child("subPathExpr"))
		validateMountOptions(m, c, at)
	}
}

func validateMountOptions(m *corev1.VolumeMount, c *corev1.Container, path place) {
	if mode := m.MountPropagation; mode != nil {
		at := path.Child("mountPropagation")
		validateValue(mode, at, corev1.MountPropagationNone, corev1.MountPropagationHostToContainer, corev1.MountPropagationBidirectional)
		if *mode == corev1.MountPropagationBidirectional && !isPrivileged(c) {
			at.forbidden("Bidirectional is for privileged containers; set securityContext.privileged or use HostToContainer")
		}
	}
	if mode := m.RecursiveReadOnly; mode != nil {
		at := path.Child("recursiveReadOnly")
		validateValue(mode, at, corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyIfPossible, corev1.RecursiveReadOnlyEnabled)
		propagates := m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone
		if *mode != corev1.RecursiveReadOnlyDisabled && (!m.ReadOnly || propagates) {
			at.forbidden("needs readOnly true and no mountPropagation; set both or remove it")
		}
	}
}

func validateVolumeDevices(c *corev1.Container, volumes map[string]*corev1.Volume, path place) {
	names, paths := sets.New[string](), sets.New[string]()
	for i := range c.VolumeDevices {
		d, at := &c.VolumeDevices[i], path.Index(i)
		validateVolumeReference(d.Name, volumes, at.Child("name"))
		if v := volumes[d.Name]; v != nil && v.PersistentVolumeClaim == nil && v.Ephemeral == nil && v.VolumeSource != (corev1.VolumeSource{}) {
			at.Child("name").invalid(d.Name, "is not a block device; only volumes of the kinds persistentVolumeClaim and ephemeral can be block devices, so mount this one with volumeMounts")
		}
		if names.Has(d.Name) {
			at.Child("name").invalid(d.Name, "must be unique in the container; remove one of the devices")
		}
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == d.Name }) {
			at.Child("name").invalid(d.Name, "is mounted in volumeMounts too; remove one of them")
		}
		validateDevicePath(d.DevicePath, c.VolumeMounts, paths, at.Child("devicePath"))
		names.Insert(d.Name)
	}
}

// validateDevicePath checks where a device appears, and adds it to paths.
func validateDevicePath(path string, mounts []corev1.VolumeMount, paths sets.Set[string], at place) {
	if path == "" {
		at.required("say where the sidecar sees the device")
		return
	}
	validateNoBacksteps(path, at)
	if paths.Has(path) {
		at.invalid(path, "must be unique in the container; change one of the devices")
	}
	if slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return m.MountPath == path }) {
		at.invalid(path, "is the path of a mount too; change one of them")
	}
	paths.Insert(path)
}

func validateVolumeReference(name string, volumes map[string]*corev1.Volume, path place) {
	if volumes[name] == nil {
		path.invalid(name, "is not a volume of this SidecarSet; declare it in spec.volumes")
	}
}

func isPrivileged(c *corev1.Container) bool {
	return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
}
