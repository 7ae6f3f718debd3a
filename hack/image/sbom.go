package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// bill is the software bill of materials of a program or of an image, in the form of CycloneDX.
// Equal programs have equal bills: there is no time in them.
func bill(of cdx.Component, programs ...string) ([]byte, error) {
	parts := map[string]cdx.Component{} // by package URL
	digest := sha256.New()
	for _, program := range programs {
		content, err := os.ReadFile(program)
		if err != nil {
			return nil, err
		}
		digest.Write(content)
		info, err := buildinfo.Read(bytes.NewReader(content))
		if err != nil {
			return nil, fmt.Errorf("reading what %s is built from: %w", program, err)
		}
		add := func(name, version string) {
			url := "pkg:golang/" + name + "@" + version
			parts[url] = cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: url, Name: name, Version: version, PackageURL: url}
		}
		add("std", strings.TrimPrefix(info.GoVersion, "go"))
		for _, module := range info.Deps {
			if module.Replace != nil {
				module = module.Replace
			}
			if !strings.HasPrefix(module.Path, ".") { // our own module, by its directory
				add(module.Path, module.Version)
			}
		}
	}
	of.BOMRef = of.PackageURL
	sum := digest.Sum(nil)
	urls := slices.Sorted(maps.Keys(parts))
	components := make([]cdx.Component, 0, len(urls))
	for _, url := range urls {
		components = append(components, parts[url])
	}
	bom := cdx.NewBOM()
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80 // version 8: a UUID of our own making
	bom.SerialNumber = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
	bom.Metadata = &cdx.Metadata{Component: &of}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: of.BOMRef, Dependencies: &urls}}
	var out bytes.Buffer
	err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	return out.Bytes(), err
}
