// Package image makes container images of trees of files: for each architecture one that a Docker daemon or containerd
// loads, and of all together one OCI layout, which is also what is pushed to a registry. No daemon is asked.
package image

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/meshcni/meshcni/release/internal/files"
	"github.com/meshcni/meshcni/release/internal/source"
)

// Repository is what the image is called, without a registry.
const Repository = "meshcni/meshcni"

// Name is what the image of a version is called, with its registry. Without one it is localhost's: an image that is imported
// and never pulled. A name without a host would be one at some public registry.
func Name(s source.Stamp) (name.Tag, error) {
	full := cmp.Or(s.Registry, "localhost") + "/" + Repository + ":" + s.Version
	// The container runtimes' own parser, which would complete a name that has no host.
	_, err := reference.ParseNamed(full)
	if err != nil {
		return name.Tag{}, fmt.Errorf("registry %q makes no image's name: %q: %w", s.Registry, full, err)
	}
	return name.NewTag(full, name.StrictValidation)
}

// Config is what a container of the image runs. It has to be the superuser to write the node's files and to enter pods'
// network namespaces; which capabilities that takes is said where it is deployed.
var Config = v1.Config{
	Entrypoint: []string{"/usr/local/bin/meshcni-node"},
	Cmd:        []string{"run"},
	Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	User:       "0:0",
	WorkingDir: "/",
}

// Labels are what the image says of itself, by the keys of the OCI.
func Labels(s source.Stamp) map[string]string {
	labels := map[string]string{
		"org.opencontainers.image.title":         "meshcni",
		"org.opencontainers.image.description":   "CNI plugin and node agent that put pods' traffic through their service mesh's proxy",
		"org.opencontainers.image.licenses":      "Apache-2.0",
		"org.opencontainers.image.source":        "https://" + source.Module,
		"org.opencontainers.image.documentation": "https://" + source.Module + "/tree/main/docs",
		"org.opencontainers.image.version":       s.Version,
		"org.opencontainers.image.created":       s.Time().Format(time.RFC3339),
	}
	if s.Commit != "" {
		labels["org.opencontainers.image.revision"] = s.Revision()
	}
	return labels
}

// Image is one for one architecture, its layer in files of a directory that must stay until all is written.
type Image struct {
	Arch  string
	Stamp source.Stamp
	// OCI has its layer compressed with zstd: half of what gzip leaves, since the programs share much of their code and
	// its window spans them. All runtimes that Kubernetes supports take it.
	OCI v1.Image
	// Docker is the same, with the same ID, its layer compressed with gzip: for whatever reads docker-archives.
	Docker v1.Image
	// Unpacked is the size of the files, in bytes.
	Unpacked int64
}

// New makes the image of the files. It has one layer, since nearly all of it is the programs, which change together.
// Temporary files go into dir, which it makes.
func New(arch string, s source.Stamp, tree []files.File, dir string) (i *Image, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("image for %s: %w", arch, err)
		}
	}()
	i = &Image{Arch: arch, Stamp: s}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for _, f := range tree {
		size, err := f.Size()
		if err != nil {
			return nil, err
		}
		i.Unpacked += size
	}
	if i.OCI, err = i.of(tree, filepath.Join(dir, "layer.tar.zst"), files.Zstd, types.OCILayerZStd); err != nil {
		return nil, err
	}
	// The best level takes eight times as long, for 3 %.
	i.Docker, err = i.of(tree, filepath.Join(dir, "layer.tar.gz"), files.Gzip(6), types.OCILayer)
	return i, err
}

// of makes the image whose layer it writes to a file.
func (i *Image) of(tree []files.File, file string, compress files.Compressor, media types.MediaType) (v1.Image, error) {
	if _, err := files.Archive(file, tree, i.Stamp.Time(), compress); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromFile(file, tarball.WithMediaType(media))
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: i.Stamp.Time()}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	config := Config
	config.Labels = Labels(i.Stamp)
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{
		OS: "linux", Architecture: i.Arch, Created: created, Config: config, RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, err
	}
	img, err = mutate.Append(img, mutate.Addendum{
		Layer:     layer,
		MediaType: media,
		History:   v1.History{Created: created, CreatedBy: "go -C release run . image", Comment: "programs and licences"},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(img, Labels(i.Stamp)).(v1.Image), nil
}

// WriteDocker writes the image as a docker-archive, which also holds its name.
func (i *Image) WriteDocker(file string) error {
	tag, err := Name(i.Stamp)
	if err == nil {
		err = tarball.WriteToFile(file, tag, i.Docker)
	}
	if err != nil {
		return fmt.Errorf("write image for %s: %w", i.Arch, err)
	}
	return nil
}

// WriteOCI writes the images of one version as one OCI layout in a tar archive, and returns the digest of their index. The
// layout is made in dir first.
func WriteOCI(file string, images []*Image, dir string) (digest v1.Hash, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write OCI layout: %w", err)
		}
	}()
	stamp := images[0].Stamp
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, i := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        i.OCI,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: i.Arch}},
		})
	}
	index = mutate.Annotations(index, Labels(stamp)).(v1.ImageIndex)

	tag, err := Name(stamp)
	if err != nil {
		return v1.Hash{}, err
	}
	named := map[string]string{
		"org.opencontainers.image.ref.name": stamp.Version,
		"io.containerd.image.name":          tag.String(),
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(named)); err != nil {
		return v1.Hash{}, err
	}
	tree, err := files.Dir(dir)
	if err != nil {
		return v1.Hash{}, err
	}
	if _, err := files.Archive(file, tree, stamp.Time(), files.Plain); err != nil {
		return v1.Hash{}, err
	}
	return index.Digest()
}
