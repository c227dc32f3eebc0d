# What `cmake --install` puts where, below any prefix and under DESTDIR. Components: server (program, manual pages, documentation), service (systemd),
# extras (the tiny model, monitoring). What names the prefix is written at install time, so that `--prefix` may say another than the build knew.
include(GNUInstallDirs)

install(TARGETS althing RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT server)
# Its libraries are the system's, which are found without the entry that tools/bundle relies on. (Told to do this itself, CMake ends the entry of the
# build tree with a colon, which is the folder that one happens to be in.)
install(CODE "file(RPATH_REMOVE FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/althing\")" COMPONENT server)
install(FILES LICENSE NOTICE README.md CHANGELOG.md SECURITY.md packaging/althing.toml DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT server)
install(DIRECTORY docs DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT server)
install(DIRECTORY monitoring/prometheus monitoring/grafana DESTINATION "${CMAKE_INSTALL_DATADIR}/althing/monitoring" COMPONENT extras)
install(DIRECTORY examples/models/tiny DESTINATION "${CMAKE_INSTALL_DATADIR}/althing/examples/models" COMPONENT extras)
install(PROGRAMS examples/monitoring/start DESTINATION "${CMAKE_INSTALL_DATADIR}/althing/examples/monitoring" COMPONENT extras)
install(PROGRAMS tools/fetch-prometheus DESTINATION "${CMAKE_INSTALL_DATADIR}/althing/tools" COMPONENT extras)
# systemd looks for units in lib/, whatever the architecture's own folder is called.
install(FILES packaging/althing.sysusers DESTINATION lib/sysusers.d RENAME althing.conf COMPONENT service)

# The program writes its pages itself, so they say what it is told and nothing else.
install(CODE "
  set(folder \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_MANDIR}/man1\")
  file(MAKE_DIRECTORY \"\${folder}\")
  execute_process(COMMAND \"$<TARGET_FILE:althing>\" manual --folder \"\${folder}\" RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR \"$<TARGET_FILE:althing> cannot write its manual pages: is it built, and for this machine?\")
  endif()
  file(GLOB pages RELATIVE \"\${folder}\" \"\${folder}/althing*.1\")
  foreach(page IN LISTS pages)
    message(STATUS \"Installing: \${folder}/\${page}\")
    list(APPEND CMAKE_INSTALL_MANIFEST_FILES \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_MANDIR}/man1/\${page}\")
  endforeach()" COMPONENT server)
install(CODE "
  set(bindir \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}\")
  set(unit \"\${CMAKE_INSTALL_PREFIX}/lib/systemd/system/althing.service\")
  configure_file(\"${CMAKE_SOURCE_DIR}/packaging/althing.service.in\" \"\$ENV{DESTDIR}\${unit}\" @ONLY)
  message(STATUS \"Installing: \$ENV{DESTDIR}\${unit}\")
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES \"\${unit}\")" COMPONENT service)
