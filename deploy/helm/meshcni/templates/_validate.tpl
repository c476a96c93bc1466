{{/* What no schema says: what cannot work, alone or together. All of them at once. */}}
{{- define "meshcni.validate" -}}
{{- $bad := list -}}
{{- $image := include "meshcni.image" . -}}
{{- if not (include "meshcni.hasHost" $image) -}}
{{- with $.Values.image.registry -}}
{{- $bad = append $bad (printf "image.registry %q is no registry's host: without a dot or a port it is a name at the container runtime's default registry, where anybody may own it" .) -}}
{{- else -}}
{{- $bad = append $bad (printf "image.registry is not set, and this chart, which is of no release, has no default: say image.registry=HOST for the registry that you pushed the image to, or image.registry=localhost if each node has it imported as localhost/%s" $image) -}}
{{- end -}}
{{- end -}}
{{- if and $.Values.cni.ownFile (not $.Values.cni.chained) }}{{- $bad = append $bad "cni.ownFile needs cni.chained: a list of our own holds the network's plugins too" }}{{- end -}}
{{- with $.Values.cni.confName -}}
{{- if and $.Values.cni.ownFile (not (hasSuffix ".conflist" .)) }}{{- $bad = append $bad (printf "cni.confName %q: with cni.ownFile it must end in .conflist" .) }}{{- end -}}
{{- if and (not $.Values.cni.chained) (hasSuffix ".conflist" .) }}{{- $bad = append $bad (printf "cni.confName %q: without cni.chained it must end in .conf or .json" .) }}{{- end -}}
{{- end -}}
{{- if and $.Values.networkAttachmentDefinition.enabled $.Values.cni.chained }}{{- $bad = append $bad "networkAttachmentDefinition.enabled needs cni.chained false: Multus would add the plugin to pods that the chain has added it to already" }}{{- end -}}
{{- if and $.Values.metrics.enabled (eq ($.Values.metrics.port | int) ($.Values.health.port | int)) }}{{- $bad = append $bad "metrics.port and health.port must differ" }}{{- end -}}
{{- if not $.Values.metrics.enabled -}}
{{- range $name := list "service" "serviceMonitor" "podMonitor" "scrapeAnnotations" -}}
{{- $on := index $.Values.metrics $name -}}
{{- if kindIs "map" $on }}{{- $on = $on.enabled }}{{- end -}}
{{- if $on }}{{- $bad = append $bad (printf "metrics.%s needs metrics.enabled" $name) }}{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $.Values.metrics.serviceMonitor.enabled $.Values.metrics.podMonitor.enabled }}{{- $bad = append $bad "metrics.serviceMonitor and metrics.podMonitor together would count everything twice" }}{{- end -}}
{{- if and (include "meshcni.repairs" .) (eq $.Values.dialect "consul") (not (and $.Values.repair.initContainer $.Values.repair.exitCodes)) }}{{- $bad = append $bad "repair.initContainer and repair.exitCodes must be set for consul, which has no container of its own that checks redirection" }}{{- end -}}
{{- if $bad }}{{- fail (printf "\n\nthese values cannot work:\n  - %s\n" (join "\n  - " $bad)) }}{{- end -}}
{{- end -}}
