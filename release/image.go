package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// repository is what the image is called, without a registry.
const repository = "meshcni/meshcni"

// imageName is what the image of a version is called, with its registry. Without one it is localhost's: an image that is imported
// and never pulled. A name without a host would be one at some public registry.
func (s source) imageName() (name.Tag, error) {
	full := cmp.Or(s.registry, "localhost") + "/" + repository + ":" + s.version
	// The container runtimes' own parser, which would complete a name that has no host.
	if _, err := reference.ParseNamed(full); err != nil {
		return name.Tag{}, fmt.Errorf("registry %q makes no image's name: %q: %w", s.registry, full, err)
	}
	return name.NewTag(full, name.StrictValidation)
}

// labels are what the image says of itself, by the keys of the OCI.
func (s source) labels() map[string]string {
	labels := map[string]string{
		"org.opencontainers.image.title":         "meshcni",
		"org.opencontainers.image.description":   "CNI plugin and node agent that put pods' traffic through their service mesh's proxy",
		"org.opencontainers.image.licenses":      "Apache-2.0",
		"org.opencontainers.image.source":        "https://" + ourModule,
		"org.opencontainers.image.documentation": "https://" + ourModule + "/tree/main/docs",
		"org.opencontainers.image.version":       s.version,
		"org.opencontainers.image.created":       s.time.Format(time.RFC3339),
	}
	if s.commit != "" {
		labels["org.opencontainers.image.revision"] = s.commit
	}
	return labels
}

// rootfs is all that the image holds.
func (r *release) rootfs(b *built) ([]file, error) {
	text, err := b.bill(r.source, container(), imagePlaces())
	if err != nil {
		return nil, err
	}
	list := append(below("licenses", licences(b.modules)),
		// Where scanners look for a bill of materials: in the image, so that it comes along on every way that an image takes to a node.
		file{name: "usr/local/share/meshcni/sbom.cdx.json", mode: 0o644, data: text},
		// For a container whose command is the name of the program of Istio's init container: with that name as its first argument
		// meshcni-redirect becomes it.
		file{name: "usr/local/bin/istio-iptables", link: "meshcni-redirect"})
	for _, p := range b.programs {
		list = append(list, file{name: nodePrograms[p.name], mode: 0o755, path: p.path})
	}
	return list, nil
}

// container is the image as the subject of a bill of materials.
func container() cdx.Component {
	return cdx.Component{Type: cdx.ComponentTypeContainer, Name: repository}
}

func imagePlaces() map[string]string {
	places := maps.Clone(nodePrograms)
	for name, place := range places {
		places[name] = "/" + place
	}
	return places
}

// images writes the images: for each architecture a docker-archive, which a daemon or containerd loads, and of all one OCI layout,
// which is also what is pushed to a registry.
func (r *release) images(ctx context.Context, arches []string) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	made := map[string]v1.Image{}
	for _, arch := range arches {
		b, err := r.node(ctx, arch)
		if err != nil {
			return err
		}
		tree, err := r.rootfs(b)
		if err != nil {
			return err
		}
		// zstd leaves half of what gzip does, since the programs share much of their code and its window spans them. All runtimes that
		// Kubernetes supports take it; gzip is for whatever reads docker-archives. gzip's best level takes eight times as long, for 3 %.
		image, err := r.image(arch, tree, zstandard, types.OCILayerZStd)
		if err != nil {
			return err
		}
		docker, err := r.image(arch, tree, gzipped(6), types.OCILayer)
		if err != nil {
			return err
		}
		if err := r.writeDocker(arch, docker); err != nil {
			return err
		}
		made[arch] = image
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	if err := r.writeLayout(mutate.Annotations(index, r.labels()).(v1.ImageIndex)); err != nil {
		return err
	}
	for _, arch := range arches {
		if err := r.describe(arch, made[arch]); err != nil {
			return err
		}
	}
	return nil
}

// image makes the image of the files for an architecture. It has one layer, since nearly all of it is the programs, which change
// together.
func (r *release) image(arch string, tree []file, compress compressor, media types.MediaType) (v1.Image, error) {
	to := filepath.Join(r.work, arch+"-layer."+string(media[len(media)-4:]))
	if err := archive(to, tree, r.time, compress); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromFile(to, tarball.WithMediaType(media))
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: r.time}
	image, err := mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), &v1.ConfigFile{
		OS: "linux", Architecture: arch, Created: created, RootFS: v1.RootFS{Type: "layers"},
		// The superuser writes the node's files and enters pods' network namespaces; which capabilities that takes is said where it is deployed.
		Config: v1.Config{
			Entrypoint: []string{"/usr/local/bin/meshcni-node"}, Cmd: []string{"run"}, User: "0:0", WorkingDir: "/", Labels: r.labels(),
			Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		},
	})
	if err != nil {
		return nil, err
	}
	image, err = mutate.Append(image, mutate.Addendum{
		Layer: layer, MediaType: media, History: v1.History{Created: created, CreatedBy: "go -C release run . image", Comment: "programs and licences"},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(image, r.labels()).(v1.Image), nil
}

// writeDocker writes an image as a docker-archive, which also holds its name.
func (r *release) writeDocker(arch string, image v1.Image) error {
	tag, err := r.imageName()
	if err != nil {
		return err
	}
	id, err := image.ConfigName()
	if err != nil {
		return err
	}
	to := r.name("image_linux_" + arch + ".docker.tar")
	if err := tarball.WriteToFile(filepath.Join(r.out, to), tag, image); err != nil {
		return fmt.Errorf("write image for %s: %w", arch, err)
	}
	return r.tell(to, "image ID "+id.String())
}

// writeLayout writes the index as an OCI layout in a tar archive.
func (r *release) writeLayout(index v1.ImageIndex) error {
	tag, err := r.imageName()
	if err != nil {
		return err
	}
	dir := filepath.Join(r.work, "layout")
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	named := map[string]string{"org.opencontainers.image.ref.name": r.version, "io.containerd.image.name": tag.String()}
	if err := path.AppendIndex(index, layout.WithAnnotations(named)); err != nil {
		return err
	}
	tree, err := directory(dir)
	if err != nil {
		return err
	}
	to := r.name("image_oci.tar")
	if err := archive(filepath.Join(r.out, to), tree, r.time, nil); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	r.index = digest.String()
	return r.tell(to, "index "+r.index)
}

// describe writes the bill of materials of an image of the layout.
func (r *release) describe(arch string, image v1.Image) error {
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	subject := container()
	subject.PackageURL = "pkg:oci/meshcni@" + url.PathEscape(digest.String()) + "?arch=" + arch + "&tag=" + r.version
	subject.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: digest.Hex}}
	text, err := r.nodes[arch].bill(r.source, subject, imagePlaces())
	if err != nil {
		return err
	}
	return r.write(r.name("image_linux_"+arch+".cdx.json"), text)
}
