target_sources(${program} PRIVATE ${PROJECT_SOURCE_DIR}/plugins/transports/ib/ib_ring.c)
target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR}/plugins/transports/ib)
