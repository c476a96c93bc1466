package dist

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/release/internal/files"
	"github.com/meshcni/meshcni/release/internal/image"
)

// Where the chart and what is generated from it are, from the root of the sources.
const (
	chartDir     = "deploy/helm/meshcni"
	manifestsDir = "deploy/manifests"
)

// Deploy writes the chart's package and the plain manifests, which install this version's image: from the release's registry
// if it has one, by its digest if it was made before.
func (r *Release) Deploy() error {
	// Helm's own reader, so that a chart which is none is found out here, and .helmignore is followed.
	c, err := loader.LoadDir(filepath.Join(r.tree.Root, filepath.FromSlash(chartDir)))
	if err != nil {
		return fmt.Errorf("read the chart: %w", err)
	}
	if err := r.manifests(c.Metadata.AppVersion); err != nil {
		return fmt.Errorf("manifests: %w", err)
	}
	if err := r.chart(c); err != nil {
		return fmt.Errorf("package the chart: %w", err)
	}
	return nil
}

// The annotations by which a released chart knows its image. Its templates read them.
const (
	registryAnnotation = "meshcni.io/image-registry"
	digestAnnotation   = "meshcni.io/image-digest"
)

// chart does as `helm package` does with --version and --app-version, except for the time of day.
func (r *Release) chart(c *chart.Chart) error {
	c.Metadata.Version, c.Metadata.AppVersion = r.tree.Number(), r.tree.Version
	if r.tree.Registry != "" {
		c.Metadata.Annotations = map[string]string{registryAnnotation: r.tree.Registry}
		if r.index != "" {
			c.Metadata.Annotations[digestAnnotation] = r.index
		}
	}
	if err := c.Validate(); err != nil {
		return err
	}
	metadata, err := yaml.Marshal(c.Metadata)
	if err != nil {
		return err
	}
	var tree []files.File
	for _, f := range c.Raw {
		data := f.Data
		if f.Name == "Chart.yaml" {
			data = metadata
		}
		tree = append(tree, files.File{Name: c.Name() + "/" + f.Name, Mode: 0o644, Data: data})
	}
	_, err = r.targz(c.Name()+"-"+r.tree.Number()+".tgz", tree, "chart")
	return err
}

// nowhere is the registry of the manifests in the sources: a name that never resolves (RFC 6761).
const nowhere = "registry.invalid"

// manifests packs the manifests, which name the version that the chart has in the sources: as released, this one's.
func (r *Release) manifests(chartVersion string) error {
	if chartVersion == "" {
		return errors.New("the chart has no appVersion, which they name")
	}
	tree, err := files.Dir(filepath.Join(r.tree.Root, filepath.FromSlash(manifestsDir)))
	if err != nil {
		return err
	}
	here := nowhere + "/" + image.Repository + ":" + chartVersion
	advice := regexp.MustCompile(`(?m)^# ` + regexp.QuoteMeta(nowhere) + ` .*\n`)
	named := regexp.MustCompile(`(app\.kubernetes\.io/version: "?)` + regexp.QuoteMeta(chartVersion) + `\b`)
	for i := range tree {
		f := &tree[i]
		text, err := os.ReadFile(f.Path)
		if err != nil {
			return err
		}
		if !named.Match(text) || !bytes.Contains(text, []byte(here)) {
			return fmt.Errorf("%s does not name image %s and version %s, as the chart does: is it made from it?", f.Name, here, chartVersion)
		}
		text = bytes.ReplaceAll(text, []byte(here), []byte(r.image()))
		if r.tree.Registry != "" {
			text = advice.ReplaceAll(text, nil)
		}
		f.Path, f.Data = "", named.ReplaceAll(text, []byte("${1}"+r.tree.Version))
	}
	base := r.name("manifests")
	_, err = r.targz(base+".tar.gz", files.Below(base, tree), "plain manifests")
	return err
}

// image is the image as the manifests name it: by its digest too if that is known, except for one that is imported, which a
// node knows by its tag.
func (r *Release) image() string {
	name := cmp.Or(r.tree.Registry, nowhere) + "/" + image.Repository + ":" + r.tree.Version
	if r.index != "" && r.tree.Registry != "" && r.tree.Registry != "localhost" {
		name += "@" + r.index
	}
	return name
}
